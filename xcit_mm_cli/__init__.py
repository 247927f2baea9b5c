"""The command line: which commands there are, and their arguments.

It is outside ``xcit_mm``, because importing that imports PyTorch and mmengine, which takes seconds.
This way, help and argument errors appear at once. What a command does is in ``xcit_mm_cli/``.
"""

from .app import main, run
from .arguments import COMMANDS, parse_args

__all__ = ['COMMANDS', 'main', 'parse_args', 'run']
