"""``python -m xcit_mm_runtime MODEL IMAGES``: runs an exported model without PyTorch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from . import coco
from .errors import ImageError, UserError
from .inputs import ResultNames, find_images, read_image
from .model import load
from .results import Detections


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        'python -m xcit_mm_runtime',
        description='Detect or segment in images with a model that "xcit-mm export" wrote, without '
        'PyTorch: this needs numpy, OpenCV, ONNX Runtime and, for pictures, Pillow. Writes what '
        '"xcit-mm infer --model" writes: pictures (vis/), and COCO JSON for detection or label '
        'PNGs for segmentation. It does not take videos or continue interrupted runs. Exit status '
        '1 if an image was skipped.',
    )
    parser.add_argument('model', help='an ONNX file')
    parser.add_argument('inputs', nargs='+', metavar='IMAGE|FOLDER|GLOB', help='images')
    parser.add_argument(
        '--out-dir', default='work_dirs/infer', help='folder for results (default: %(default)s)'
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        help='draw only boxes that score above this (default: 0.3)',
    )
    parser.add_argument('--no-vis', action='store_true', help='predictions only, no pictures')
    parser.add_argument('--force', action='store_true', help='overwrite earlier results')
    parser.add_argument(
        '--threads', type=int, default=0, help='processors to use (default: all of them)'
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; errors are one paragraph, with exit status 2.

    Args:
        argv (Sequence[str], optional): The arguments. Defaults to None, those of this process.
    """
    args = parse_args(argv)
    try:
        return run(args)
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = f'{error.filename or "a file"} could not be read or written: {error.strerror}'
    print(f'error: {message}', file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    """Predict for all images; returns the exit status."""
    paths = find_images(args.inputs)
    model = load(args.model, args.threads)
    if model.task == 'features':
        raise UserError(f'{args.model} is a backbone alone, which detects and segments nothing.')
    out_dir = Path(args.out_dir)
    results = out_dir / ('predictions.json' if model.task == 'detection' else 'labels')
    if results.exists() and not args.force:
        raise UserError(
            f'{results} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    kinds = coco.categories(model.classes, model.category_ids)
    images, found, skipped = [], [], {}
    names = ResultNames(paths)
    for number, path in enumerate(paths, 1):
        name = names[number - 1]
        try:
            image = read_image(path, model.bit_depth)
            result = model(image)
        except (ImageError, MemoryError) as error:
            skipped[path] = str(error) or 'not enough memory'
            continue
        if isinstance(result, Detections):
            images.append(coco.image_entry(number, path, image.shape))
            found += coco.annotations(result, number, kinds)
        else:
            write_png(results / f'{name}.png', result.labels)
        if not args.no_vis:
            options = (args.score_thr,) if isinstance(result, Detections) else ()
            write_png(out_dir / 'vis' / f'{name}.png', result.draw(image, *options))
    if model.task == 'detection':
        out_dir.mkdir(parents=True, exist_ok=True)
        with results.open('w', encoding='utf-8') as file:
            coco.write_predictions(file, coco.OWN_IDS, kinds, found, images)
    for path, reason in skipped.items():
        print(f'skipped, {reason}: {path}')
    print(f'{len(paths) - len(skipped)} of {len(paths)} images\npredictions: {results}')
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0


def write_png(path: Path, image: np.ndarray) -> None:
    """Write an image, and the folder for it.

    Args:
        path (Path): The file.
        image (np.ndarray): BGR, or labels.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode('.png', image)[1].tobytes())


if __name__ == '__main__':
    sys.exit(main())
