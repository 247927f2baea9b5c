"""Pictures of what a trained XCiT looks at."""

import argparse
import os
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from ..models import XCiTClassifier
from ..visualization.class_attention import ClassAttentionMaps
from ..visualization.cross_covariance import CrossCovarianceMaps
from ..visualization.layers import spread
from ..visualization.load import Subject, load_subject
from ..visualization.magnitude import QueryKeyMagnitude
from ..visualization.observe import Picture, draw, observe
from ..visualization.pyramid import PyramidFeatures
from ..weights import CheckpointError, WeightsError
from .common import UserError, check_checkpoint, load_config
from .infer import find_images, read_image, result_names

# name -> what it shows
PICTURES = {
    'magnitude': 'the norm of each token’s normalised query and key',
    'class_attention': 'the attention from the class token to the patches, classifiers only',
    'covariance': 'the attention maps between channels, their entropy and temperatures',
    'pyramid': 'the four levels of a dense backbone as colours',
}
DEFAULT_LAYERS = 6


def parse_args() -> argparse.Namespace:
    described = '; '.join(f'{name}: {what}' for name, what in PICTURES.items())
    parser = argparse.ArgumentParser(
        description='Draw what an XCiT looks at, from the weights of a backbone, detector, '
        'segmentor or classifier. Images are computed at their full size and drawn at screen '
        'size. Exit status 1 if an image was skipped.',
        epilog=f'Pictures: {described}.',
    )
    parser.add_argument('inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='what to look at')
    parser.add_argument(
        '--checkpoint', required=True, help='a path, a web address, or a short name (xcit://...)'
    )
    parser.add_argument(
        '--config',
        help='a config file; not needed for the sizes of the paper, which the weights tell',
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
        '--separate', action='store_true', help='one file a picture, not one an image'
    )
    parser.add_argument(
        '--max-side', type=int, metavar='PIXELS', help='shrink larger images first (default: never)'
    )
    parser.add_argument(
        '--dpi', type=int, default=100, help='pixels an inch; a figure is 16 inches wide'
    )
    parser.add_argument(
        '--out-dir', default='work_dirs/visualize', help='where PNGs go (default: %(default)s)'
    )
    parser.add_argument('--device', help='cpu, cuda:0, ... (default: CUDA if there is one)')
    parser.add_argument('--force', action='store_true', help='overwrite earlier pictures')
    return parser.parse_args()


def load(args: argparse.Namespace) -> Subject:
    """The model, or one paragraph on why it cannot be had."""
    check_checkpoint(args.checkpoint)
    cfg = load_config(args.config) if args.config else None
    device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        return load_subject(args.checkpoint, cfg, device)
    except (CheckpointError, WeightsError, OSError, RuntimeError, ValueError) as error:
        raise UserError(str(error)) from None


def missing_pictures(subject: Subject) -> dict[str, str]:
    """The pictures that this model cannot have, and why."""
    if isinstance(subject.backbone, XCiTClassifier):
        return {'pyramid': 'a classifier has no pyramid'}
    reasons = {
        'class_attention': 'the backbone of a detector or segmentor has no class attention; '
        'classifier and DINO weights have'
    }
    if not subject.trained_pyramid:
        reasons['pyramid'] = 'the checkpoint has no weights for it'
    return reasons


def choose_pictures(subject: Subject, wanted: list[str] | None) -> list[str]:
    """The pictures to draw, in their order; says which are left out."""
    reasons = missing_pictures(subject)
    for name in wanted or ():
        if name in reasons:
            raise UserError(f'--pictures {name}: {reasons[name]}.')
    for name, reason in {} if wanted else reasons.items():
        print(f'left out: {name}; {reason}')
    return [name for name in PICTURES if name in (wanted or PICTURES) and name not in reasons]


def choose_layers(depth: int, wanted: list[str] | None) -> list[int]:
    """The layers to draw, counted from 1."""
    if wanted is None:
        return spread(depth, DEFAULT_LAYERS)
    if wanted == ['all']:
        return list(range(1, depth + 1))
    try:
        layers = [int(text) for text in wanted]
    except ValueError:
        layers = [0]
    if not all(1 <= layer <= depth for layer in layers):
        raise UserError(f'--layers {" ".join(wanted)}: they must be "all", or in 1...{depth}.')
    return sorted(set(layers))


def new_pictures(
    subject: Subject, names: list[str], layers: list[int], per_head: bool
) -> dict[str, Picture]:
    """Fresh pictures, for one image."""
    backbone = subject.backbone
    makers: dict[str, Any] = {
        'magnitude': lambda: QueryKeyMagnitude(backbone, layers, per_head),
        'class_attention': lambda: ClassAttentionMaps(backbone),
        'covariance': lambda: CrossCovarianceMaps(backbone, layers),
        'pyramid': lambda: PyramidFeatures(backbone),
    }
    return {name: makers[name]() for name in names}


class Ticker:
    """Moves a progress bar on by one layer."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self.progress, self.task = progress, task

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        self.progress.advance(self.task)


def read(path: Path, max_side: int | None) -> np.ndarray:
    """An image as RGB; raises ValueError if it cannot be read."""
    image = read_image(path)
    if image is None:
        raise ValueError('it cannot be read')
    if max_side and max(image.shape[:2]) > max_side:
        image = mmcv.imrescale(image, (max_side, max_side), interpolation='area')
    return mmcv.bgr2rgb(image)


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG; it exists under its name only when it is whole."""
    unfinished = path.with_suffix('.unfinished')
    figure.savefig(unfinished, format='png', dpi=dpi)
    os.replace(unfinished, path)


def main() -> int:
    args = parse_args()
    images = find_images(args.inputs)
    if min(args.max_side or 1, args.dpi) < 1:
        raise UserError('--max-side and --dpi must be at least 1.')
    subject = load(args)
    depth = len(subject.backbone.layers)
    names = choose_pictures(subject, args.pictures)
    layers = choose_layers(depth, args.layers)
    out_dir, stems = Path(args.out_dir), result_names(images)
    endings = [f'_{name}.png' for name in names] if args.separate else ['.png']
    files = [out_dir / f'{stem}{ending}' for stem in stems.values() for ending in endings]
    existing = [path for path in files if path.exists()]
    if existing and not args.force:
        raise UserError(
            f'{existing[0]} exists already; --force overwrites it, --out-dir goes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    model = f'{Path(args.config).name if args.config else type(subject.backbone).__name__}'
    skipped: dict[Path, str] = {}
    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task('images', total=len(images) * (depth + 1))
        for i, path in enumerate(images):
            progress.update(task, description=path.name, completed=i * (depth + 1))
            pictures = new_pictures(subject, names, layers, args.per_head)
            try:
                image = read(path, args.max_side)
                ticker = Ticker(progress, task)
                observe(subject.backbone, subject.preprocess(image), [*pictures.values(), ticker])
            except ValueError as error:
                skipped[path] = str(error)
                continue
            title = f'{path.name} · {model}'
            if args.separate:
                for name, picture in pictures.items():
                    figure = draw([picture], image, title)
                    save(figure, out_dir / f'{stems[path]}_{name}.png', args.dpi)
            else:
                figure = draw(list(pictures.values()), image, title)
                save(figure, out_dir / f'{stems[path]}.png', args.dpi)
    for path, reason in skipped.items():
        print(f'skipped {path}: {reason}')
    made = len(files) - len(skipped) * len(endings)
    print(f'{len(images) - len(skipped)} of {len(images)} images; {made} pictures in {out_dir}')
    return 1 if skipped else 0
