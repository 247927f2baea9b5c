"""Pictures of what a trained XCiT looks at."""

import argparse
import io
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from xcit_mm.errors import UserError, is_out_of_memory
from xcit_mm.visualization.layers import spread
from xcit_mm.visualization.load import Subject, load_subject
from xcit_mm.visualization.observe import Observer, draw, observe
from xcit_mm.visualization.pictures import PICTURES, make_picture, unavailable
from xcit_mm_runtime import ImageError
from xcit_mm_runtime.files import write_atomically
from xcit_mm_runtime.inputs import ResultNames, find_images, read_image, unsupported_files
from xcit_mm_runtime.preprocess import resize_image

from .arguments import DEFAULT_LAYERS
from .common import check_checkpoint, check_device, command, load_config


def load(checkpoint: str, cfg: Config | None, device: str | None = None) -> Subject:
    """Load the model, or explain in one paragraph why that is impossible.

    Args:
        checkpoint (str): As for ``load_subject``.
        cfg (Config, optional): As for ``load_subject``.
        device (str, optional): Where it runs. Defaults to None, CUDA if there is one.
    """
    check_checkpoint(checkpoint)
    check_device(device)
    device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        return load_subject(checkpoint, cfg, device)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def choose_pictures(subject: Subject, wanted: list[str] | None) -> list[str]:
    """The pictures to draw; prints which are left out."""
    reasons = unavailable(subject)
    for name in wanted or ():
        if name in reasons:
            raise UserError(f'--pictures {name}: {reasons[name]}.')
    for name, reason in [] if wanted else reasons.items():
        print(f'left out: {name}; {reason}')
    return [name for name in PICTURES if name in (wanted or PICTURES) and name not in reasons]


def choose_layers(depth: int, wanted: list[str] | None) -> list[int]:
    """The layers to draw, counted from 1."""
    if wanted is None:
        return spread(depth, DEFAULT_LAYERS)
    if wanted == ['all']:
        return list(range(1, depth + 1))
    layers = [int(text) if text.isdecimal() else 0 for text in wanted]
    if not all(1 <= layer <= depth for layer in layers):
        raise UserError(f'--layers {" ".join(wanted)}: must be "all" or numbers in 1...{depth}.')
    return layers


def read(
    path: Path, max_side: int | None, resize: dict[str, Any] | None, bit_depth: int | None = None
) -> np.ndarray:
    """An image as RGB, resized; raises ValueError if it cannot be read or resized.

    Args:
        path (Path): The file.
        max_side (int, optional): Shrink it to this if it is larger.
        resize (dict, optional): Else, resize it as a test pipeline does.
        bit_depth (int, optional): As for ``read_image``. Defaults to None.
    """
    try:
        image = read_image(path, bit_depth)
    except ImageError:
        raise ValueError('it cannot be read') from None
    if max_side and max(image.shape[:2]) > max_side:
        image = mmcv.imrescale(image, (max_side, max_side), interpolation='area')
    return mmcv.bgr2rgb(image if max_side else resize_image(image, resize))


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG, which gets its name only when it is complete."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=dpi)
    write_atomically(path, buffer.getvalue())


class Ticker:
    """An observer that advances a progress bar by one layer."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self.progress, self.task = progress, task

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        self.progress.advance(self.task)


def plan_files(args: argparse.Namespace, images: list[Path], names: list[str]) -> dict[Path, dict]:
    """For each image, the files to write, by what they show; raises if one exists."""
    out_dir, stems = Path(args.out_dir), ResultNames(images)
    endings = {name: f'_{name}.png' for name in names} if args.separate else {'': '.png'}
    files = {
        image: {what: out_dir / f'{stems[i]}{ending}' for what, ending in endings.items()}
        for i, image in enumerate(images)
    }
    existing = [path for paths in files.values() for path in paths.values() if path.exists()]
    if existing and not args.force:
        raise UserError(
            f'{existing[0]} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    return files


@command('visualize')
def main(args: argparse.Namespace) -> int:
    images = find_images(args.inputs)
    cfg = load_config(args.config) if args.config else None
    subject = load(args.checkpoint, cfg, args.device)
    resize = None if args.full_size else subject.resize
    names = choose_pictures(subject, args.pictures)
    depth = len(subject.backbone.layers)
    layers = choose_layers(depth, args.layers)
    files = plan_files(args, images, names)
    for other in unsupported_files(args.inputs):
        print(f'left out, a file type that is not read from folders: {other}')
    skipped: dict[Path, str] = {}
    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task('', total=len(images) * (depth + 1))
        for i, path in enumerate(images):
            progress.update(task, description=path.name, completed=i * (depth + 1))
            pictures = {name: make_picture(name, subject, layers, args.per_head) for name in names}
            observers: list[Observer] = [*pictures.values(), Ticker(progress, task)]
            try:
                image = read(path, args.max_side, resize, subject.bit_depth)
                observe(subject.backbone, subject.preprocess(image), observers)
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
        progress.update(task, completed=len(images) * (depth + 1))
    for path, reason in skipped.items():
        print(f'skipped {path}: {reason}')
    made = sum(len(paths) for path, paths in files.items() if path not in skipped)
    done = len(images) - len(skipped)
    print(f'{done} of {len(images)} images; {made} PNGs in {args.out_dir}')
    return 1 if skipped else 0
