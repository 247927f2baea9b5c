"""Whole image or sliding window: the accuracy of both on one large scene with known labels.

    python -m dev.large_accuracy

The scene is a mosaic of drawn scenes, 96x96 each, as the segmentor of ``make demo`` was trained on.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcit_mm.datasets.shapes.draw import draw_scene
from xcit_mm.datasets.shapes.make import label_image
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm_cli.common import explain_errors

CONFIG = 'xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py'
CHECKPOINT = Path('work_dirs/demo/segmentor/iter_420.pth')
SIDE = 96
UNLABELED = 255


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.large_accuracy',
        description='Compare "infer --whole" with "infer --window" by mIoU on a mosaic of drawn '
        'scenes, with the segmentor of "make demo". Prints a table; a minute on two cores.',
    )
    parser.add_argument(
        '--scenes', type=int, default=16, help='along each side of the mosaic (default: 16)'
    )
    parser.add_argument(
        '--windows', type=int, nargs='+', default=[SIDE, 192, 384, 768], help='sides of windows'
    )
    parser.add_argument('--checkpoint', type=Path, default=CHECKPOINT, help='default: %(default)s')
    return parser.parse_args()


def draw_mosaic(count: int) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) in RGB and its labels (H, W)."""
    rng = np.random.default_rng(0)
    side = count * SIDE
    image, labels = np.zeros((side, side, 3), np.uint8), np.zeros((side, side), np.uint8)
    for top in range(0, side, SIDE):
        for left in range(0, side, SIDE):
            scene = draw_scene(rng, SIDE, SIDE)
            here = slice(top, top + SIDE), slice(left, left + SIDE)
            image[here], labels[here] = scene.image[..., ::-1], label_image(scene)
    return image, labels - np.uint8(1)  # 0, unlabeled, becomes 255


def mean_iou(found: np.ndarray, truth: np.ndarray, classes: int) -> float:
    from mmseg.evaluation import IoUMetric

    pair = (torch.from_numpy(labels.astype(np.int64)) for labels in (found, truth))
    areas = IoUMetric.intersect_and_union(*pair, classes, UNLABELED)
    return 100 * float(np.nanmean(IoUMetric.total_area_to_metrics(*areas, ['mIoU'])['IoU']))


def work(args: argparse.Namespace) -> int:
    from xcit_mm.inference import load_model
    from xcit_mm.large.segment import WholeSegmentation
    from xcit_mm.large.sliding import segment_windows
    from xcit_mm.large.whole import as_image
    from xcit_mm_cli.common import load_config

    if not args.checkpoint.is_file():
        raise UserError(f'There is no {args.checkpoint}; "make demo" trains it.')
    cfg = load_config(CONFIG)
    model = load_model(cfg, str(args.checkpoint), 'cpu')
    pixels, truth = draw_mosaic(args.scenes)
    image, classes = as_image(pixels), model.decode_head.out_channels
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        whole = WholeSegmentation(model, Path(folder, 'whole'))
        found = whole.labels(image, whole.plan(image)).rows(0, len(truth))
        rows.append({'run': '--whole', 'mIoU': round(mean_iou(found, truth, classes), 1)})
        for side in args.windows:
            overlap = 0 if side == SIDE else side // 4
            part = Path(folder, str(side))
            part.mkdir()
            labels = segment_windows(model, image, part, side, overlap, lambda *_: None)
            score = round(mean_iou(labels.rows(0, len(truth)), truth, classes), 1)
            rows.append({'run': f'--window {side} --overlap {overlap}', 'mIoU': score})
    print(format_table(rows, 'markdown'))
    return 0


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args()))
