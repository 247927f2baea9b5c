"""``xcit-mm visualize``: draw what a trained XCiT looks at."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import CHECKPOINT_HELP, add_device, add_flag, positive

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from mmengine.config import Config

    from xcit_mm.visualization.load import Subject

# Number of layers that are drawn by default.
DEFAULT_LAYERS = 6
# name -> what it shows
PICTURES = {
    'magnitude': 'the norm of each token’s normalized query and key',
    'class_attention': 'the attention from the class token to the patches, classifiers only',
    'covariance': 'the attention maps between channels, their entropy and temperatures',
    'pyramid': 'the levels of a dense backbone as colors',
}
# Options that --detection and --class have no use for.
WITHOUT_GRADIENT = ('pictures', 'per_head', 'separate', 'max_side', 'full_size')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Draw what an XCiT looks at, from the weights of a backbone, detector, segmentor or '
        'classifier. Images are resized as for testing, if the config or the one saved in the '
        'checkpoint says how; else, they keep their size. Exit status 1 if an image was skipped.'
    )
    described = '; '.join(f'{name}: {what}' for name, what in PICTURES.items())
    parser.epilog = f'Pictures: {described}.'
    parser.add_argument('inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='the images')
    parser.add_argument('--checkpoint', required=True, help=CHECKPOINT_HELP)
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
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument(
        '--detection',
        type=positive,
        metavar='N',
        help='draw, instead of the pictures above, the places that raised the score of the N-th '
        'best detection: the gradient times the features of each layer. Needs --config',
    )
    targets.add_argument(
        '--class',
        dest='class_name',
        metavar='NAME',
        help='the same for all detections of a class or, in a segmentor, for all its pixels',
    )
    add_flag(parser, '--per-head', 'query and key magnitude of each head')
    add_flag(parser, '--separate', 'one file per picture, not one per image')
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
    add_device(parser)
    add_flag(parser, '--force', 'overwrite earlier pictures')


def run(args: argparse.Namespace) -> int:
    import torch

    from xcit_mm.engine.config import load_config
    from xcit_mm.errors import UserError, is_out_of_memory
    from xcit_mm.visualization.load import load_subject
    from xcit_mm.visualization.observe import draw, observe
    from xcit_mm.visualization.pictures import make_picture
    from xcit_mm_runtime.inputs import find_images
    from xcit_mm_runtime.progress import track

    from .common import check_checkpoint, check_device, print_left_out

    is_gradient = args.detection is not None or args.class_name is not None
    if is_gradient:
        check_gradient_options(args)
    images = find_images(args.inputs)
    cfg = load_config(args.config) if args.config else None
    check_checkpoint(args.checkpoint)
    check_device(args.device)
    if is_gradient:
        return draw_gradients(args, images, cfg)
    device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        subject = load_subject(args.checkpoint, cfg, device)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(str(error)) from None
    resize = None if args.full_size else subject.resize
    names = choose_pictures(subject, args.pictures)
    layers = choose_layers(len(subject.backbone.layers), args.layers)
    endings = {name: f'_{name}.png' for name in names} if args.separate else {'': '.png'}
    files = plan_files(args, images, endings)
    print_left_out(args.inputs)
    skipped: dict[Path, str] = {}
    for path in track(images, 'images'):
        pictures = {name: make_picture(name, subject, layers, args.per_head) for name in names}
        try:
            image = read(path, args.max_side, resize, subject.bit_depth)
            observe(subject.backbone, subject.preprocess(image), list(pictures.values()))
            title = f'{path.name} · {Path(args.config or args.checkpoint).name}'
            for what, file in files[path].items():
                shown = [pictures[what]] if what else list(pictures.values())
                save(draw(shown, image, title), file, args.dpi)
        except ValueError as error:
            skipped[path] = str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            skipped[path] = 'not enough memory; --max-side makes images smaller'
    return summarize(args, files, skipped)


def check_gradient_options(args: argparse.Namespace) -> None:
    """Raise if options do not go with ``--detection`` or ``--class``."""
    from xcit_mm.errors import UserError

    option = '--class' if args.detection is None else '--detection'
    if not args.config:
        raise UserError(f'{option} runs the whole model: give its --config.')
    for name in WITHOUT_GRADIENT:
        if getattr(args, name):
            raise UserError(f'{option} and --{name.replace("_", "-")} do not go together.')


def draw_gradients(args: argparse.Namespace, images: list[Path], cfg: Config) -> int:
    """Draw what raised the score of one detection or one class of each image."""
    from xcit_mm.engine.config import dense_scope_of, explaining_config
    from xcit_mm.errors import UserError, is_out_of_memory
    from xcit_mm.inference.predictors import load_predictor
    from xcit_mm.models.trunk import XCiTTrunk
    from xcit_mm.visualization.gradient import explain
    from xcit_mm_runtime import ImageError, read_image
    from xcit_mm_runtime.progress import track

    from .common import print_left_out

    if dense_scope_of(cfg, '--detection and --class') == 'mmseg' and args.detection is not None:
        raise UserError('--detection needs a detector; --class works with segmentors, too.')
    with explaining_config(args.config):
        predictor = load_predictor(cfg, args.checkpoint, args.device)
    if not isinstance(predictor.model.backbone, XCiTTrunk):
        raise UserError('the config has no XCiT, which the pictures need.')
    target, ending = {'detection': args.detection}, f'_detection_{args.detection}.png'
    if args.detection is None:
        if args.class_name not in predictor.classes:
            known = ', '.join(predictor.classes)
            raise UserError(f'--class {args.class_name}: the classes are {known}.')
        target = {'label': predictor.classes.index(args.class_name)}
        name = re.sub(r'[^\w-]+', '_', args.class_name)
        ending = f'_class_{name}.png'
    layers = choose_layers(len(predictor.model.backbone.layers), args.layers)
    files = plan_files(args, images, {'': ending})
    print_left_out(args.inputs)
    skipped: dict[Path, str] = {}
    for path in track(images, 'images'):
        try:
            image = read_image(path, predictor.bit_depth)
            explanation = explain(predictor, image, **target, layers=layers)
            save(explanation.draw(), files[path][''], args.dpi)
        except ImageError as error:
            skipped[path] = str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            skipped[path] = 'not enough memory for gradients; a smaller test scale takes less'
    return summarize(args, files, skipped)


def summarize(args: argparse.Namespace, files: dict[Path, dict], skipped: dict[Path, str]) -> int:
    """Print what was drawn and what was not; return the status of the command."""
    for path, reason in skipped.items():
        print(f'skipped {path}: {reason}')
    made = sum(len(paths) for path, paths in files.items() if path not in skipped)
    done = len(files) - len(skipped)
    print(f'{done} of {len(files)} images; {made} PNGs in {args.out_dir}')
    return 1 if skipped else 0


def choose_pictures(subject: Subject, wanted: list[str] | None) -> list[str]:
    """Return the pictures to draw, and print which are left out."""
    from xcit_mm.errors import UserError
    from xcit_mm.visualization.pictures import unavailable

    reasons = unavailable(subject)
    for name, reason in reasons.items():
        if wanted is None:
            print(f'left out: {name}; {reason}')
        elif name in wanted:
            raise UserError(f'--pictures {name}: {reason}.')
    return [name for name in PICTURES if name in (wanted or PICTURES) and name not in reasons]


def choose_layers(depth: int, wanted: list[str] | None) -> list[int]:
    """Return the layers to draw, counted from 1."""
    from xcit_mm.errors import UserError
    from xcit_mm.visualization.observe import spread

    if wanted is None:
        return spread(depth, DEFAULT_LAYERS)
    if wanted == ['all']:
        return list(range(1, depth + 1))
    layers = [int(text) if text.isdecimal() else 0 for text in wanted]
    if not all(1 <= layer <= depth for layer in layers):
        raise UserError(f'--layers {" ".join(wanted)}: must be "all" or numbers in 1...{depth}.')
    return layers


def plan_files(
    args: argparse.Namespace, images: list[Path], endings: dict[str, str]
) -> dict[Path, dict]:
    """Return for each image the files to write, by what they show; raise if one exists."""
    from xcit_mm_runtime.files import check_new
    from xcit_mm_runtime.inputs import ResultNames

    out_dir, stems = Path(args.out_dir), ResultNames(images)
    files = {
        image: {what: out_dir / f'{stems[i]}{ending}' for what, ending in endings.items()}
        for i, image in enumerate(images)
    }
    for paths in files.values():
        for path in paths.values():
            check_new(path, args.force, '--out-dir writes elsewhere')
    out_dir.mkdir(parents=True, exist_ok=True)
    return files


def read(
    path: Path, max_side: int | None, resize: dict[str, Any] | None, bit_depth: int | None = None
) -> np.ndarray:
    """Read an image as RGB and resize it; raise ValueError if that is impossible.

    Args:
        path (Path): The file.
        max_side (int, optional): Shrink it to this if it is larger.
        resize (dict, optional): Else, resize it as a test pipeline does.
        bit_depth (int, optional): As for ``read_image``. Defaults to None.
    """
    import mmcv

    from xcit_mm_runtime import ImageError, read_image
    from xcit_mm_runtime.preprocess import resize_image

    try:
        image = read_image(path, bit_depth)
    except ImageError:
        raise ValueError('it cannot be read') from None
    if max_side and max(image.shape[:2]) > max_side:
        image = mmcv.imrescale(image, (max_side, max_side), interpolation='area')
    return mmcv.bgr2rgb(image if max_side else resize_image(image, resize))


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG, which gets its name only when it is complete."""
    from xcit_mm_runtime.files import write_atomically

    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=dpi)
    write_atomically(path, buffer.getvalue())
