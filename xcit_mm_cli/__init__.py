"""The command line: which commands there are, and their arguments.

It stands beside ``xcit_mm``, not in it, because importing ``xcit_mm`` imports PyTorch and mmengine,
which takes seconds. So help, and errors in the arguments, come at once. What a command does is in
``xcit_mm/cli/``.
"""

from .app import main, run
from .arguments import COMMANDS, parse_args

__all__ = ['COMMANDS', 'main', 'parse_args', 'run']
