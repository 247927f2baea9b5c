"""``python -m xcit_mm_runtime MODEL IMAGES``: runs an exported model without PyTorch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import coco
from .errors import UserError
from .files import check_new
from .inputs import ResultNames, find_images
from .model import load
from .predict import FilePredictor, Skipped, results_path
from .progress import track


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
    """Predict for all images; return the exit status."""
    paths = find_images(args.inputs)
    model = load(args.model, args.threads)
    model.check_predicts()
    out_dir = Path(args.out_dir)
    results = results_path(model.task, out_dir)
    check_new(results, args.force, '--out-dir writes elsewhere')
    categories = coco.categories(model.classes, model.category_ids)
    score_thr = None if args.no_vis else args.score_thr
    predict = FilePredictor(model, out_dir, score_thr, categories)
    records, skipped = [], 0
    names = ResultNames(paths)
    for i, path in enumerate(track(paths, 'images', len(paths))):
        try:
            records.append(predict(path, names[i], i + 1))
        except Skipped as reason:
            skipped += 1
            print(f'skipped, {reason}: {path}')
    if model.task == 'detection':
        coco.write_predictions(results, coco.OWN_IDS, categories, records)
    print(f'{len(records)} of {len(paths)} images\npredictions: {results}')
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0


if __name__ == '__main__':
    sys.exit(main())
