"""The command line: one file per command.

Each file has the arguments of a command at the top, in ``add_arguments(parser)``, and what it does
in ``run(args)``, which returns the exit status. PyTorch and OpenMMLab take seconds to import. They
are only imported inside functions, so that help and argument errors appear at once.
"""

from .app import COMMANDS, main, parse_args, run_command

__all__ = ['COMMANDS', 'main', 'parse_args', 'run_command']
