"""Arguments that several commands have, and checks that import nothing heavy."""

import argparse
import difflib
from pathlib import Path

# The installed configs, for tools that do not know xcit_mm::.
CONFIGS = Path(__file__).parents[1] / 'xcit_mm' / '.mim' / 'configs'
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
CHECKPOINT_HELP = 'a path, a web address, or a short name such as xcit://coco/s12/8'


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} must be a whole number above 0')
    return int(text)


def minutes(text: str) -> float:
    """Parse a positive number of minutes."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float('inf'):
        raise argparse.ArgumentTypeError(f'{text!r} must be a number above 0')
    return number


def seed(text: str) -> int:
    """Parse the seed of random numbers."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f'{text!r} must be a whole number from 0 to 2**32 - 1')
    return int(text)


def fraction(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f'{text!r} must be a number from 0 to 1')
    return number


def _key_and_value(text: str) -> str:
    if not text.partition('=')[0] or '=' not in text:
        raise argparse.ArgumentTypeError(f'{text!r} must be KEY=VALUE')
    return text


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an option without a value.

    Args:
        parser (ArgumentParser): What it is added to.
        name (str): The option.
        text (str): Its help.
    """
    parser.add_argument(name, action='store_true', help=text)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the config as a positional argument."""
    parser.add_argument('config', help='a config file, or xcit_mm::detection/NAME.py')


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--cfg-options``."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        type=_key_and_value,
        metavar='KEY=VALUE',
        help='change settings of the config: train_dataloader.batch_size=4, or for lists '
        'key="[a,b]"',
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that training and testing have in common."""
    parser.add_argument('--work-dir', help='where logs and results go (default: work_dirs/CONFIG)')
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none', help='how processes are started'
    )
    add_flag(
        parser,
        '--verbose',
        'show all of the log on the screen; by default, details of the start are only in the '
        'log file',
    )
    # torch.distributed.launch passes this one.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def add_allow_partial(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-partial``."""
    add_flag(
        parser,
        '--allow-partial',
        'use a checkpoint that leaves parameters of the model at random values, or that has '
        'parts the model lacks',
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument('--device', help='cpu, cuda:0, ... (default: CUDA if there is one)')


def add_source_options(parser: argparse.ArgumentParser, on_classes: str) -> None:
    """Add the options that say how a folder of a user's dataset is read.

    Args:
        parser (ArgumentParser): What they are added to.
        on_classes (str): The help of ``--classes``.
    """
    parser.add_argument(
        '--format',
        choices=('auto', 'voc', 'yolo', 'labelme', 'masks', 'numbers'),
        default='auto',
        help='detection: masks are a file for each object, numbers are label images with a number '
        'for each object (default: what the folder looks like)',
    )
    parser.add_argument('--classes', nargs='+', metavar='NAME', help=on_classes)
    parser.add_argument(
        '--val-fraction',
        type=fraction,
        default=0.2,
        metavar='PART',
        help='fraction of images for validation, if there are no splits (default: %(default)s)',
    )
    parser.add_argument(
        '--seed', type=seed, default=0, help='seed of that choice (default: %(default)s)'
    )


def find_missing_config(path: str | None) -> str | None:
    """Return an error message if a config does not exist.

    Args:
        path (str, optional): A file, or ``xcit_mm::detection/NAME.py``. Those of other packages are
            not checked.
    """
    if path is None or ('::' in path and not path.startswith('xcit_mm::')):
        return None
    file = CONFIGS / path.removeprefix('xcit_mm::') if '::' in path else Path(path).absolute()
    if file.is_file():
        return None
    names = [other.name for other in file.parent.glob('*.py')]
    close = difflib.get_close_matches(file.name, names, n=1)
    return (
        f'There is no config {path if "::" in path else file}. The configs of this project are in '
        'configs/detection/, segmentation/, classification/ and pretraining/, for instance '
        'configs/detection/mask_rcnn_xcit_s12_8_3x.py. From anywhere, name installed configs '
        'as xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py.'
        + (f' Did you mean {path.removesuffix(file.name)}{close[0]}?' if close else '')
    )
