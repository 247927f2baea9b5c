"""``xcit-mm COMMAND``: checks the arguments, then imports the command and runs it."""

import difflib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .arguments import COMMANDS, parse_args
from .files import missing_config

# What shells report for a program that SIGPIPE ended.
CLOSED_PIPE = 141
# What shells report for Ctrl-C.
INTERRUPTED = 130
# The installed configs, for tools that do not know xcit_mm::.
CONFIGS = Path(__file__).parents[1] / 'xcit_mm' / '.mim' / 'configs'


def ends_with_its_reader(work: Callable[..., int]) -> Callable[..., int]:
    """End quietly when nobody reads the output any more, as in ``xcit-mm --help | head -1``."""

    @functools.wraps(work)
    def quiet(*args: object, **kwargs: object) -> int:
        try:
            try:
                return work(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            try:
                print(flush=True)
            except BrokenPipeError:
                # Python itself flushes once more at the end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return CLOSED_PIPE
            raise  # the output can be read: it was another pipe

    return quiet


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> int:
    """Run ``xcit-mm``.

    Args:
        argv (Sequence[str], optional): A command and its arguments. Defaults to None, those of
            this process.

    Returns:
        int: The exit status.
    """
    name, *rest = (sys.argv[1:] if argv is None else argv) or ['']
    if name in ('-h', '--help'):
        print(usage())
        return 0
    if name == '--version':
        from importlib.metadata import version  # takes longer than all the rest

        print(f'xcit-mm {version("xcit_mm")}')
        return 0
    if name == '--configs':
        print(CONFIGS)
        return 0
    if name in COMMANDS:
        return run(name, rest, f'xcit-mm {name}')
    if not name:
        print(usage(), file=sys.stderr)
        return 2
    close = difflib.get_close_matches(name, COMMANDS)
    known = f'The commands are {", ".join(COMMANDS)}.'
    hint = f'Did you mean {" or ".join(close)}?' if close else known
    return _fail(f'xcit-mm has no command {name!r}. {hint}')


def usage() -> str:
    """The commands, with one line for each."""
    width = max(map(len, COMMANDS))
    lines = [f'  {name:{width}}  {command.summary}' for name, command in COMMANDS.items()]
    return '\n'.join(
        [
            'usage: xcit-mm COMMAND [ARGUMENTS]',
            '       xcit-mm COMMAND --help',
            '       xcit-mm --version',
            '       xcit-mm --configs    (the folder of the installed configs)',
            '',
            'XCiT as a backbone for OpenMMLab. Commands:',
            *lines,
        ]
    )


@ends_with_its_reader
def run(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run one command; bad arguments end it before anything heavy is imported.

    Args:
        name (str): One of :data:`COMMANDS`.
        argv (Sequence[str], optional): Its arguments. Defaults to None, those of this process.
        prog (str, optional): What the help calls it. Defaults to None, the name of the script.

    Returns:
        int: The exit status.
    """
    args = parse_args(name, argv, prog)
    problem = missing_config(getattr(args, 'config', None))
    if problem:
        return _fail(problem)
    try:
        module = name.replace('-', '_')
        return importlib.import_module(f'xcit_mm_cli.{module}').main(args)
    except ImportError as error:
        # A package that says itself that another one is missing gives no name.
        missing = error.name or isinstance(error, ModuleNotFoundError)
        if not missing or (error.name or '').startswith('xcit_mm'):
            raise
        return _fail(f'{error}. "xcit-mm doctor" says what is missing and how to install it.')
    except KeyboardInterrupt:
        print('\nInterrupted.', file=sys.stderr)
        return INTERRUPTED


def _fail(message: str) -> int:
    print(f'error: {message}', file=sys.stderr)
    return 2
