"""The arguments of every command."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SPLITS = ('train', 'val', 'test')
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
FORMATS = ('text', 'markdown', 'json')
TASKS = ('detection', 'segmentation')
ARCHS = ('n12', 't12', 't24', 's12', 's24', 'm24', 'l24')
DATA_FORMATS = ('auto', 'voc', 'yolo')
CONVERTED_SPLITS = ('train', 'val', 'test', 'trainval')
# How many images --calibration uses.
CALIBRATION_IMAGES = 64
EXPORT_FORMATS = ('onnx', 'torch')
# ONNX Runtime 1.31 has no RoIAlign of version 22.
OPSETS = range(18, 22)
# Defaults of infer: what differs from them was asked for.
SCORE_THR, OVERLAP = 0.3, 256
# Number of layers that `visualize` draws by default.
DEFAULT_LAYERS = 6
# name -> what it shows
PICTURES = {
    'magnitude': 'the norm of each token’s normalized query and key',
    'class_attention': 'the attention from the class token to the patches, classifiers only',
    'covariance': 'the attention maps between channels, their entropy and temperatures',
    'pyramid': 'the levels of a dense backbone as colors',
}


class Command(NamedTuple):
    """One command.

    Args:
        summary (str): Its line in the list of commands.
        add_arguments (callable): Describes it and its arguments to a parser.
        problem (callable, optional): Says what is wrong with a combination of arguments, if
            anything is. Defaults to None.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    problem: Callable[[argparse.Namespace], str | None] | None = None


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
    command = COMMANDS[name]
    command.add_arguments(parser)
    args = parser.parse_args(argv)
    problem = command.problem(args) if command.problem else None
    if problem:
        parser.error(problem)
    return args


def train(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Train a detector, a segmentor or a classifier. For several processes: tools/dist_train.sh.'
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
    parser.add_argument(
        '--amp',
        action='store_true',
        help='mixed precision (needs CUDA); all but the segmentors use it on a GPU anyway',
    )
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
        'Test a detector, a segmentor or a classifier. For several processes: tools/dist_test.sh.'
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
        'detection, mIoU mDice mFscore for segmentation, top1 top5 for classification',
    )
    _run_arguments(parser)
    parser.add_argument(
        '--out',
        help='write predictions: a folder of PNGs for segmentation, a .pkl file for all others',
    )
    parser.add_argument(
        '--json', metavar='FILE', help='write the metrics, also those of each class, to a JSON file'
    )
    parser.add_argument('--force', action='store_true', help='overwrite --out and --json')
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument(
        '--show-dir',
        help='write a picture of each image to this folder: ground truth on the left, prediction '
        'on the right',
    )
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
        'If interrupted, rerun it to continue. Exit status 1 if an image was skipped. '
        'Several processes share the inputs (see below).'
    )
    parser.add_argument(
        'inputs',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB|@LIST|VIDEO|CAMERA',
        help='images, videos, or the number of a camera (0 is the first; Ctrl-C ends its video). '
        'Quote globs that match many files. @LIST is a text file with one path per line, relative '
        'to the current folder',
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument('--config', help='a config file, with --checkpoint')
    models.add_argument('--model', metavar='FILE', help='a model that "xcit-mm export" wrote')
    _config_options(parser)
    _checkpoint(parser, required=False)
    _allow_partial(parser)
    parser.add_argument(
        '--out-dir', default='work_dirs/infer', help='folder for results (default: %(default)s)'
    )
    _device(parser)
    parser.add_argument(
        '--score-thr',
        type=_fraction,
        default=SCORE_THR,
        help='draw only boxes that score above this (default: %(default)s)',
    )
    parser.add_argument(
        '--ann-file',
        metavar='FILE',
        help="annotations in COCO's layout that give the ids of images (by file name) and of "
        'categories (by name), so that pycocotools can score the predictions (default: images '
        'are numbered from 1)',
    )
    parser.add_argument('--no-vis', action='store_true', help='predictions only, no pictures')
    parser.add_argument('--force', action='store_true', help='overwrite earlier results')
    parser.add_argument(
        '--retry-skipped',
        action='store_true',
        help='when continuing, try again what was skipped before the interruption',
    )
    _several_processes(parser)
    _large_images(parser)


def _several_processes(parser: argparse.ArgumentParser) -> None:
    several = parser.add_argument_group(
        'several processes',
        'Processes that torchrun, srun or mpirun start share the inputs, on any number of '
        'machines with a common folder. Each writes its own file to OUT_DIR/shards. If some are '
        'killed, rerun the same command, with as many processes as you like: it does what is '
        'missing. At the end, "xcit-mm merge OUT_DIR" writes what one process would have written. '
        'Exit status 0 if a process did its share; merge reports what was skipped.',
    )
    several.add_argument(
        '--shard',
        type=_shard,
        metavar='I/N',
        help='do the I-th of N shares, 1/N to N/N, if there is no launcher (an array of jobs)',
    )


def merge(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Put together what several processes of "xcit-mm infer" have found. Writes the files that '
        'one process would have written, checks that every image is done, and lists those that '
        'were skipped. Then deletes the shards, if nothing is missing or skipped. Exit status: 0 '
        'if every image was used, 1 if some were skipped, 2 if some are missing.'
    )
    parser.add_argument('out_dir', metavar='OUT_DIR', help='the --out-dir of infer')
    parser.add_argument(
        '--allow-missing',
        action='store_true',
        help='merge what is there, with exit status 1, and keep the shards',
    )


def _large_images(parser: argparse.ArgumentParser) -> None:
    large = parser.add_argument_group(
        'large images',
        'TIFF, .npy and zarr images are read by windows, at their own resolution. Labels are '
        'written as TIFFs, with the geo-reference of the image, and pictures (vis/) are small '
        'previews.',
    )
    how = large.add_mutually_exclusive_group()
    how.add_argument(
        '--whole',
        action='store_true',
        help='segment images of any size, with the result of segmenting them at once',
    )
    how.add_argument(
        '--window',
        type=positive,
        metavar='PIXELS',
        help='slide a window of this size over the image instead',
    )
    large.add_argument(
        '--memory',
        metavar='AMOUNT',
        help='what the process may use with --whole, as in 4GB (default: no limit)',
    )
    large.add_argument(
        '--overlap',
        type=int,
        default=OVERLAP,
        metavar='PIXELS',
        help='what neighboring windows have in common (default: %(default)s)',
    )


def infer_problem(args: argparse.Namespace) -> str | None:
    """What is wrong with a combination of arguments of ``infer``."""
    if args.memory is not None and not args.whole:
        return '--memory limits what --whole uses: give both'
    if args.overlap != OVERLAP and args.window is None:
        return '--overlap is what the windows of --window have in common: give both'
    if args.whole or args.window is not None:
        if args.model:
            return (
                '--whole and --window run a checkpoint: give --config and --checkpoint, not --model'
            )
        if args.retry_skipped:
            return '--whole and --window skip no image: drop --retry-skipped'
    if args.whole and (args.ann_file or args.score_thr != SCORE_THR):
        option = '--ann-file' if args.ann_file else '--score-thr'
        return f'{option} is for detectors, and --whole for segmentors: drop one of them'
    if args.config:
        return None if args.checkpoint else '--config needs --checkpoint'
    options = ('checkpoint', 'cfg_options', 'allow_partial', 'device')
    given = [f'--{name.replace("_", "-")}' for name in options if getattr(args, name)]
    return f'--model is complete in itself and runs on the CPU: drop {given[0]}' if given else None


def export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Write a trained model to one file that runs without PyTorch (ONNX) or without OpenMMLab '
        '(torch.export). The graph takes images of any size, at least 32x32, in batches of any '
        'size. Boxes, suppression and masks are inside. Then the file is run next to the model on '
        'three sizes of images. It is kept only if both agree; a report is written next to it.'
    )
    parser.epilog = (
        'Input "image": float32 (N, C, H, W), normalized, channels in the order of the network, '
        'or raw bytes with --uint8. Outputs: "logits" (N, K, H, W) or "labels" (N, H, W) of a '
        'segmentor; "boxes", "scores", "labels" and "masks" of a detector; "level_0"... of a '
        'backbone. The metadata of the file describe the rest (docs/deploy.md).'
    )
    _config(parser)
    parser.add_argument(
        'checkpoint', help='a path, a web address, or a short name such as xcit://coco/s12/8'
    )
    parser.add_argument(
        '--format',
        choices=EXPORT_FORMATS,
        default='onnx',
        help='onnx: for ONNX Runtime and others; torch: a program of torch.export, not for '
        'detectors (default: onnx)',
    )
    parser.add_argument(
        '--out', metavar='FILE', help='the file to write (default: CONFIG.onnx or CONFIG.pt2)'
    )
    parser.add_argument(
        '--backbone', action='store_true', help='the backbone with its pyramid alone'
    )
    parser.add_argument(
        '--labels', action='store_true', help='a segmentor gives labels, not logits'
    )
    parser.add_argument(
        '--uint8',
        action='store_true',
        help='take raw bytes (N, C, H, W), and normalize them inside the graph',
    )
    parser.add_argument(
        '--channel-order',
        choices=('rgb', 'bgr'),
        default='rgb',
        help='the order of the raw bytes of --uint8 (default: rgb)',
    )
    parser.add_argument(
        '--opset',
        type=int,
        choices=OPSETS,
        default=18,
        metavar='N',
        help=f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[-1]}; more runtimes know lower "
        'ones (default: 18)',
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        '--fp16',
        dest='precision',
        action='store_const',
        const='float16',
        help='half the size: weights and most products in float16. For GPUs; no faster on a CPU, '
        'where ONNX Runtime computes in float32 anyway',
    )
    precision.add_argument(
        '--int8',
        dest='precision',
        action='store_const',
        const='int8',
        help='linear layers in int8: smaller, and faster on a CPU with instructions for int8, such '
        'as VNNI',
    )
    parser.set_defaults(precision='float32')
    parser.add_argument(
        '--calibration',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB',
        help=f'with --int8: images like those of the training, of which the first '
        f'{CALIBRATION_IMAGES} are used to measure ranges of values, so that convolutions are in '
        'int8 too. Smaller still, but less accurate',
    )
    parser.add_argument(
        '--images',
        nargs='+',
        metavar='IMAGE|FOLDER|GLOB',
        help='images to check the file with (default: drawn ones)',
    )
    _config_options(parser)
    _allow_partial(parser)
    parser.add_argument('--force', action='store_true', help='overwrite the file if it exists')


def visualize(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Draw what an XCiT looks at, from the weights of a backbone, detector, segmentor or '
        'classifier. Images are resized as for testing, if the config or the one saved in the '
        'checkpoint says how; else, they keep their size. Exit status 1 if an image was skipped.'
    )
    described = '; '.join(f'{name}: {what}' for name, what in PICTURES.items())
    parser.epilog = f'Pictures: {described}.'
    _images(parser)
    _checkpoint(parser)
    parser.add_argument(
        '--config',
        help="a config file; only needed for a size that is not one of the paper's, or to resize "
        'images as it does',
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
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        '--max-side',
        type=positive,
        metavar='PIXELS',
        help='shrink larger images to this, and do not resize otherwise',
    )
    sizes.add_argument('--full-size', action='store_true', help='do not resize images')
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
        'Check the datasets of a config: decode every image and label and inspect every '
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


def convert_data(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Convert a folder in the format of Pascal VOC or YOLO to COCO's, one file per split, and "
        'list what is wrong with it. Exit status: 0 if everything was converted, 1 if something '
        'had to be left out, 2 if nothing could be converted.'
    )
    parser.add_argument('folder', type=Path, help='a folder with images and annotations')
    parser.add_argument('--out', type=Path, help='where SPLIT.json files go (default: FOLDER/coco)')
    _source_options(parser, 'classes in this order; others are left out (default: all)')
    parser.add_argument(
        '--splits',
        nargs='+',
        choices=CONVERTED_SPLITS,
        help='splits to convert (default: all that the folder has)',
    )
    parser.add_argument('--json', metavar='FILE', help='write all problems to a JSON file')
    parser.add_argument('--force', action='store_true', help='overwrite earlier files')


def _source_options(parser: argparse.ArgumentParser, on_classes: str) -> None:
    """How a folder of somebody's data is read."""
    parser.add_argument(
        '--format',
        choices=DATA_FORMATS,
        default='auto',
        help='default: what the folder looks like',
    )
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='NAME',
        help=on_classes,
    )
    parser.add_argument(
        '--val-fraction',
        type=_fraction,
        default=0.2,
        metavar='PART',
        help='fraction of images for validation, if there are no splits (default: %(default)s)',
    )
    parser.add_argument(
        '--seed', type=_seed, default=0, help='seed of that choice (default: %(default)s)'
    )


def init(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Look at a folder of data and write a config that trains on it. Detection takes the '
        'formats of COCO, Pascal VOC and YOLO, segmentation takes folders of images and labels. '
        'Exit status: 0 if all of the data can be used, 1 if there are errors in it, 2 if no '
        'config could be written.'
    )
    parser.add_argument('task', choices=TASKS)
    parser.add_argument('--data', type=Path, required=True, metavar='FOLDER', help='the data')
    parser.add_argument('--out', type=Path, help='the config to write (default: ./FOLDER.py)')
    parser.add_argument(
        '--arch',
        choices=ARCHS,
        help='size of the network (default: that of --weights, or n12 on a CPU and s12 on a GPU)',
    )
    parser.add_argument(
        '--patch-size',
        type=int,
        choices=(8, 16),
        help='8 sees smaller things and takes 4 times as long (default: that of --weights, or 16)',
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument('--scratch', action='store_true', help='train without pretrained weights')
    start.add_argument(
        '--weights',
        help='weights to start from: a path or xcit://NAME (default: those of ImageNet)',
    )
    parser.add_argument(
        '--void',
        nargs='+',
        type=int,
        default=[],
        metavar='LABEL',
        help='segmentation: labels to ignore, next to 255',
    )
    parser.add_argument(
        '--classes-from',
        type=int,
        choices=(0, 1),
        help='segmentation: the label of the first class; with 1, label 0 is ignored (default: 0, '
        'or 1 if no label is 0)',
    )
    parser.add_argument(
        '--coco-dir',
        type=Path,
        metavar='FOLDER',
        help='where converted annotations and lists of images go, for a folder that cannot be '
        'written (default: coco/ or splits/ in the folder)',
    )
    _source_options(
        parser,
        'detection: classes to use, and their order if annotations are converted; COCO files keep '
        'theirs (default: all). Segmentation: names of all labels, in the order of their numbers',
    )
    parser.add_argument('--force', action='store_true', help='overwrite the config')


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
        "Draw a dataset of shapes in COCO's layout (FOLDER/coco) and in ADE20k's (FOLDER/ade). "
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


def _shard(text: str) -> tuple[int, int]:
    """The index, from 0, and the number of shares."""
    part, _, count = text.partition('/')
    if not (part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count)):
        raise argparse.ArgumentTypeError(f'{text!r} must be I/N, from 1/N to N/N')
    return int(part) - 1, int(count)


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
    parser.add_argument(
        '--verbose',
        action='store_true',
        help='show all of the log on the screen; by default, details of the start are only in the '
        'log file',
    )
    # torch.distributed.launch passes this one.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def _images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='the images')


def _checkpoint(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        '--checkpoint',
        required=required,
        help='a path, a web address, or a short name (xcit://...)',
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
    'init': Command('write a config for a folder of your data', init),
    'train': Command('train a detector, a segmentor, a classifier or a backbone', train),
    'test': Command('measure the accuracy of a trained model', test),
    'infer': Command('detect or segment in images and videos', infer, infer_problem),
    'merge': Command('put together what several processes of infer have found', merge),
    'export': Command('write a model to one file, ONNX or torch.export, and check it', export),
    'visualize': Command('draw what an XCiT looks at', visualize),
    'check': Command('find problems in a dataset', check),
    'convert-data': Command("convert boxes from Pascal VOC's or YOLO's format", convert_data),
    'convert': Command('convert weights to a clean safetensors file', convert),
    'stats': Command("count parameters and GFLOPs, next to the paper's", stats),
    'demo': Command('train, evaluate and show two models on drawn images, in minutes', demo),
    'shapes': Command('draw a small dataset to try things out', shapes),
    'doctor': Command('say what is missing in this environment, and how to fix it', doctor),
}
