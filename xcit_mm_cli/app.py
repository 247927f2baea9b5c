"""``xcit-mm COMMAND``: the table of commands, and how one of them is run."""

import argparse
import difflib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from .options import CONFIGS, find_missing_config

# What shells report for a program that SIGPIPE ended.
CLOSED_PIPE = 141
# What shells report for Ctrl-C.
INTERRUPTED = 130


class Command(NamedTuple):
    """A line of the help; the file of the same name has the arguments and the work.

    Args:
        summary (str): What the command does.
        example (str): Arguments for it.
    """

    summary: str
    example: str = ''


# In the order in which a user needs them.
COMMANDS = {
    'doctor': Command('say what is missing in this environment, and how to fix it'),
    'demo': Command('train, evaluate and show two models on drawn images, in minutes', '--quick'),
    'init': Command('write a config for a folder of your data', 'detection --data photos'),
    'check': Command('find problems in a dataset', 'photos.py'),
    'train': Command('train a detector, a segmentor, a classifier or a backbone', 'photos.py'),
    'test': Command(
        'measure the accuracy of a trained model', 'photos.py work_dirs/photos/epoch_12.pth'
    ),
    'verify': Command("measure the published weights, next to the paper's results", 'coco'),
    'infer': Command(
        'detect or segment in images and videos',
        'street.jpg --config xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py '
        '--checkpoint xcit://coco/s12/8',
    ),
    'merge': Command('put together what several processes of infer have found', 'work_dirs/infer'),
    'visualize': Command('draw what an XCiT looks at', 'street.jpg --checkpoint xcit://s12/8'),
    'retrieve': Command(
        'find images like another one', 'index photos --checkpoint xcit://dino/s12/16'
    ),
    'export': Command(
        'write a model to one file, ONNX or torch.export, and check it',
        'photos.py work_dirs/photos/epoch_12.pth --out photos.onnx',
    ),
    'serve': Command('serve an exported model over HTTP', 'photos.onnx --port 8000'),
    'convert-data': Command("convert boxes from Pascal VOC's or YOLO's format", 'VOC2012'),
    'convert-weights': Command(
        'convert weights to a clean safetensors file', 'xcit://s12/8 s12_8.safetensors'
    ),
    'shapes': Command('draw a small dataset to try things out', 'data/shapes --train 400'),
    'stats': Command("count parameters and GFLOPs, next to the paper's", '--format markdown'),
}
# These run where PyTorch and OpenMMLab cannot be imported, and explain errors themselves.
WITHOUT_TORCH = ('doctor', 'serve')
# Old name -> new name.
RENAMED = {'convert': 'convert-weights'}


def handle_broken_pipe(work: Callable[..., int]) -> Callable[..., int]:
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


@handle_broken_pipe
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
    if name in RENAMED:
        print(f'warning: "xcit-mm {name}" is now "xcit-mm {RENAMED[name]}".', file=sys.stderr)
        name = RENAMED[name]
    if name in COMMANDS:
        return run_command(name, rest, f'xcit-mm {name}')
    if not name:
        print(usage(), file=sys.stderr)
        return 2
    close = difflib.get_close_matches(name, COMMANDS)
    known = f'The commands are {", ".join(COMMANDS)}.'
    hint = f'Did you mean {" or ".join(close)}?' if close else known
    return _fail(f'xcit-mm has no command {name!r}. {hint}')


def usage() -> str:
    """Return the help: each command with a summary and an example."""
    width = max(map(len, COMMANDS))
    lines = [
        'usage: xcit-mm COMMAND [ARGUMENTS]',
        '       xcit-mm COMMAND --help',
        '       xcit-mm --version',
        '       xcit-mm --configs    (the folder of the installed configs)',
        '',
        'XCiT as a backbone for OpenMMLab. Commands:',
    ]
    for name, command in COMMANDS.items():
        lines.append(f'  {name:{width}}  {command.summary}')
        lines.append(f'  {"":{width}}    {_example(name)}')
    return '\n'.join(lines)


def _example(name: str) -> str:
    return f'xcit-mm {name} {COMMANDS[name].example}'.rstrip()


def parse_args(
    name: str, argv: Sequence[str] | None = None, prog: str | None = None
) -> argparse.Namespace:
    """Parse the arguments of a command; as argparse does, exit on errors and after help.

    Args:
        name (str): One of :data:`COMMANDS`.
        argv (Sequence[str], optional): The arguments. Defaults to None, those of this process.
        prog (str, optional): What the help calls the command. Defaults to None, the name of the
            script.
    """
    module = _module(name)
    parser = argparse.ArgumentParser(prog)
    module.add_arguments(parser)
    parser.epilog = f'{parser.epilog or ""} Example: {_example(name)}'
    args = parser.parse_args(argv)
    # Only some commands have options that exclude each other.
    conflict = module.find_conflict(args) if hasattr(module, 'find_conflict') else None
    if conflict:
        parser.error(conflict)
    return args


@handle_broken_pipe
def run_command(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run one command; bad arguments end it before anything heavy is imported.

    Args:
        name (str): One of :data:`COMMANDS`.
        argv (Sequence[str], optional): Its arguments. Defaults to None, those of this process.
        prog (str, optional): What the help calls it. Defaults to None, the name of the script.

    Returns:
        int: The exit status.
    """
    args = parse_args(name, argv, prog)
    missing = find_missing_config(getattr(args, 'config', None))
    if missing:
        return _fail(missing)
    run = _module(name).run
    try:
        if name in WITHOUT_TORCH:
            return run(args)
        from .common import explain_errors

        return explain_errors(run, args)
    except ImportError as error:
        # A package that says itself that another one is missing gives no name.
        missing_package = error.name or isinstance(error, ModuleNotFoundError)
        if not missing_package or (error.name or '').startswith('xcit_mm'):
            raise
        return _fail(f'{error}. "xcit-mm doctor" says what is missing and how to install it.')
    except KeyboardInterrupt:
        print('\nInterrupted.', file=sys.stderr)
        return INTERRUPTED


def _module(name: str) -> ModuleType:
    return importlib.import_module(f'{__package__}.{name.replace("-", "_")}')


def _fail(message: str) -> int:
    print(f'error: {message}', file=sys.stderr)
    return 2
