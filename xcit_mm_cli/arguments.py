"""The arguments of every command."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SPLITS = ('train', 'val', 'test')
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
FORMATS = ('text', 'markdown', 'json')
# Number of layers that `visualize` draws by default.
DEFAULT_LAYERS = 6
# name -> what it shows
PICTURES = {
    'magnitude': 'the norm of each token’s normalised query and key',
    'class_attention': 'the attention from the class token to the patches, classifiers only',
    'covariance': 'the attention maps between channels, their entropy and temperatures',
    'pyramid': 'the levels of a dense backbone as colours',
}


class Command(NamedTuple):
    """One command.

    Args:
        summary (str): Its line in the list of commands.
        add_arguments (callable): Describes it and its arguments to a parser.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


def parse_args(
    name: str, argv: Sequence[str] | None = None, prog: str | None = None
) -> argparse.Namespace:
    """Parse the arguments of a command; as argparse does, exits on errors and after help.

    Args:
        name (str): One of :data:`COMMANDS`.
        argv (Sequence[str], optional): The arguments. Defaults to None, those of this process.
        prog (str, optional): What the help calls the command. Defaults to None, the name of the
            script.
    """
    parser = argparse.ArgumentParser(prog)
    COMMANDS[name].add_arguments(parser)
    return parser.parse_args(argv)


def train(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Train a detector or a segmentor. For several processes: tools/dist_train.sh.'
    )
    _config(parser)
    _run_arguments(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from a checkpoint; without one, from the latest in the work folder',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision (needs CUDA)')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate from the config's batch size to the one in use",
    )
    parser.add_argument('--seed', type=_seed, help='seed of all random numbers')
    parser.add_argument(
        '--deterministic', action='store_true', help='deterministic algorithms only (slower)'
    )
    parser.add_argument('--no-validate', action='store_true', help='no validation during training')


def test(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Test a detector or a segmentor. For several processes: tools/dist_test.sh.'
    )
    _config(parser)
    parser.add_argument(
        'checkpoint', help='a path, a web address, or a short name such as xcit://coco/s12/8'
    )
    parser.add_argument(
        '--eval',
        nargs='+',
        metavar='METRIC',
        help="metrics to compute instead of the config's: bbox segm proposal proposal_fast for "
        'detection, mIoU mDice mFscore for segmentation',
    )
    _run_arguments(parser)
    parser.add_argument(
        '--out',
        help='write predictions: a .pkl file for detection, a folder of PNGs for segmentation',
    )
    parser.add_argument('--json', metavar='FILE', help='write the metrics to a JSON file')
    parser.add_argument('--force', action='store_true', help='overwrite --out and --json')
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument('--show-dir', help='write pictures of the predictions to this folder')
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds between windows (default: 2)'
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    _allow_partial(parser)


def infer(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Detect or segment in images and videos. Writes pictures (vis/) and predictions: COCO JSON '
        'for detection, label PNGs for segmentation. For a video, writes a video with the '
        'predictions drawn in. '
        'If interrupted, rerun it to continue. Exit status 1 if an image was skipped.'
    )
    parser.add_argument(
        'inputs',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB|VIDEO|CAMERA',
        help='images, videos, or the number of a camera (0 is the first; Ctrl-C ends its video)',
    )
    parser.add_argument('--config', required=True, help='a config file')
    _config_options(parser)
    _checkpoint(parser)
    _allow_partial(parser)
    parser.add_argument(
        '--out-dir', default='work_dirs/infer', help='folder for results (default: %(default)s)'
    )
    _device(parser)
    parser.add_argument(
        '--score-thr',
        type=_fraction,
        default=0.3,
        help='draw only boxes that score above this (default: 0.3)',
    )
    parser.add_argument('--no-vis', action='store_true', help='predictions only, no pictures')
    parser.add_argument('--force', action='store_true', help='overwrite earlier results')


def visualize(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Draw what an XCiT looks at, from the weights of a backbone, detector, segmentor or '
        'classifier. Images are computed at their full size and drawn at screen size. Exit status '
        '1 if an image was skipped.'
    )
    described = '; '.join(f'{name}: {what}' for name, what in PICTURES.items())
    parser.epilog = f'Pictures: {described}.'
    _images(parser)
    _checkpoint(parser)
    parser.add_argument(
        '--config', help="a config file; only needed for a size that is not one of the paper's"
    )
    parser.add_argument(
        '--pictures',
        nargs='+',
        choices=PICTURES,
        metavar='PICTURE',
        help=f'some of {", ".join(PICTURES)} (default: all that the model has)',
    )
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='LAYER',
        help=f'layers to draw, counted from 1, or "all" (default: {DEFAULT_LAYERS} of them)',
    )
    parser.add_argument(
        '--per-head', action='store_true', help='query and key magnitude of each head'
    )
    parser.add_argument(
        '--separate', action='store_true', help='one file per picture, not one per image'
    )
    parser.add_argument(
        '--max-side',
        type=positive,
        metavar='PIXELS',
        help='shrink larger images first (default: never)',
    )
    parser.add_argument(
        '--dpi',
        type=positive,
        default=100,
        help='pixels per inch; a figure is 16 inches wide (default: %(default)s)',
    )
    parser.add_argument(
        '--out-dir', default='work_dirs/visualize', help='folder for PNGs (default: %(default)s)'
    )
    _device(parser)
    parser.add_argument('--force', action='store_true', help='overwrite earlier pictures')


def check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Check the data sets of a config: decode every image and label and inspect every '
        'annotation. Exit status: 0 if a run can use all of it, 1 if there are errors, 2 if it '
        'could not be checked.'
    )
    _config(parser)
    parser.add_argument(
        '--split', nargs='+', choices=SPLITS, default=SPLITS, help='default: all three'
    )
    _config_options(parser)
    parser.add_argument(
        '--workers',
        type=positive,
        default=os.cpu_count() or 1,
        help='images to decode at once (default: the number of processors, %(default)s)',
    )
    parser.add_argument('--json', metavar='FILE', help='write all problems to a JSON file')
    parser.add_argument('--force', action='store_true', help='overwrite --json')


def convert(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Convert XCiT weights of any published format to a safetensors file with this project's "
        'names. This is only needed if you want a clean file: every published file loads as it is.'
    )
    parser.add_argument('input', help='a path, a web address, xcit://NAME or timm://NAME')
    parser.add_argument('output', help='the file to write, ending in .safetensors')
    parser.add_argument('--force', action='store_true', help='overwrite the output if it exists')


def stats(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count the parameters and GFLOPs of the paper's models, next to the paper's own numbers. "
        'The counting rule is printed below the table.'
    )
    parser.add_argument(
        '--paper',
        action='store_true',
        help="the parameter columns of the paper's COCO and ADE20k tables instead",
    )
    parser.add_argument('--format', choices=FORMATS, default='text', help='default: %(default)s')
    parser.add_argument('--out', metavar='FILE', help='write to a file, not to the screen')


def demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Train Mask R-CNN and Semantic FPN on XCiT-N12/8 from scratch on drawn images, evaluate '
        'them, and write a page with numbers, curves and pictures. The images go to data/shapes/. '
        'If interrupted, rerun it to resume.'
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='about 3 minutes, too short for meaningful accuracy',
    )
    parser.add_argument('--seed', type=_seed, default=0, help='seed of the training (default: 0)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='where everything goes (default: work_dirs/demo, or work_dirs/demo_quick)',
    )


def shapes(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a data set of shapes in COCO's layout (FOLDER/coco) and in ADE20k's (FOLDER/ade). "
        'The same arguments give the same bytes.'
    )
    parser.add_argument('folder', nargs='?', default='data/shapes', help='default: %(default)s')
    parser.add_argument(
        '--train', type=positive, default=400, help='training images (default: %(default)s)'
    )
    parser.add_argument(
        '--val', type=positive, default=100, help='validation images (default: %(default)s)'
    )
    parser.add_argument(
        '--size',
        type=positive,
        default=128,
        help='height and width in pixels (default: %(default)s)',
    )
    parser.add_argument('--seed', type=_seed, default=0, help='default: %(default)s')
    parser.add_argument(
        '--negatives',
        type=_fraction,
        default=0.0,
        metavar='PART',
        help='fraction of images with dark shapes on light backgrounds (default: %(default)s)',
    )
    parser.add_argument('--force', action='store_true', help='replace the folder if it exists')


def doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Check whether detection and segmentation can run in this environment. Lists the versions '
        'found and supported, and how to fix each problem. Exit status 0 if both can run.'
    )


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('config', help='a config file, or xcit_mm::detection/NAME.py')


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        type=_key_and_value,
        metavar='KEY=VALUE',
        help='change settings of the config: train_dataloader.batch_size=4, or for lists '
        'key="[a,b]"',
    )


def _key_and_value(text: str) -> str:
    if not text.partition('=')[0] or '=' not in text:
        raise argparse.ArgumentTypeError(f'{text!r} must be KEY=VALUE')
    return text


def positive(text: str) -> int:
    """A type of arguments: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} must be a whole number above 0')
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f'{text!r} must be a whole number from 0 to 2**32 - 1')
    return int(text)


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f'{text!r} must be a number from 0 to 1')
    return number


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    """What training and testing have in common."""
    parser.add_argument('--work-dir', help='where logs and results go (default: work_dirs/CONFIG)')
    _config_options(parser)
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none', help='how processes are started'
    )
    # torch.distributed.launch passes this one.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def _images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='the images')


def _checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--checkpoint', required=True, help='a path, a web address, or a short name (xcit://...)'
    )


def _allow_partial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--allow-partial',
        action='store_true',
        help='use a checkpoint that leaves parameters of the model at random values, or that has '
        'parts the model lacks',
    )


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--device', help='cpu, cuda:0, ... (default: CUDA if there is one)')


COMMANDS = {
    'train': Command('train a detector or a segmentor', train),
    'test': Command('measure the accuracy of a trained model', test),
    'infer': Command('detect or segment in images and videos', infer),
    'visualize': Command('draw what an XCiT looks at', visualize),
    'check': Command('find problems in a data set', check),
    'convert': Command('convert weights to a clean safetensors file', convert),
    'stats': Command("count parameters and GFLOPs, next to the paper's", stats),
    'demo': Command('train, evaluate and show two models on drawn images, in minutes', demo),
    'shapes': Command('draw a small data set to try things out', shapes),
    'doctor': Command('say what is missing in this environment, and how to fix it', doctor),
}
