"""The usual sliding window over a large image, for comparison, and for other heads and detectors.

Each window sees nothing of the rest of the image, and the pixels where windows overlap are computed
more than once.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .images import Image, Prepare
from .labels import LabelFile
from .segment import StepProgress, labels_from_logits
from .store import Rows
from .windows import Window

# Boxes of a class that share this much of the smaller one are one object, seen by two windows.
SAME_OBJECT = 0.5


def starts(length: int, window: int, overlap: int) -> list[int]:
    """Return where windows begin along a side; the last one ends at the border, as in mmseg."""
    if not 0 <= overlap < window:
        raise ValueError(f'the overlap must be less than the window, not {overlap} of {window}')
    if length <= window:
        return [0]
    step = window - overlap
    return [min(i * step, length - window) for i in range(-(-(length - window) // step) + 1)]


def windows(size: tuple[int, int], window: int, overlap: int) -> Iterator[Window]:
    """Yield all windows of an image, row by row."""
    for top in starts(size[0], window, overlap):
        for left in starts(size[1], window, overlap):
            yield Window(top, min(top + window, size[0]), left, min(left + window, size[1]))


@torch.no_grad()
def segment_windows(
    model: Any, image: Image, folder: Path, window: int, overlap: int, report: StepProgress
) -> LabelFile:
    """Segment windows at the image's own resolution; logits are averaged where they overlap.

    Of the logits, only those that later windows add to are kept.

    Args:
        model (EncoderDecoder): The segmentor, in eval mode.
        image (Image): The image.
        folder (Path): For intermediate files.
        window (int): Side of the windows in pixels.
        overlap (int): What neighbors have in common.
        report (callable): Called with ``windows``, those that are done, and all.
    """
    device = next(model.parameters()).device
    prepare = Prepare(model.backbone.in_channels, model.data_preprocessor, device)
    prepare.check(image)
    size = image.shape[:2]
    tops, lefts = starts(size[0], window, overlap), starts(size[1], window, overlap)
    classes = model.decode_head.out_channels
    labels = LabelFile(folder, size, max(classes, 2))
    rows, columns = _counts(tops, window, size[0]), _counts(lefts, window, size[1])
    common = max((a + window - b for a, b in itertools.pairwise(tops)), default=0)
    carries = itertools.cycle(_carries(folder, (classes, common, size[1])))
    carry, done = next(carries), 0
    for top, next_top in itertools.pairwise([*tops, size[0]]):
        bottom = min(top + window, size[0])
        unfinished = next(carries)
        right: Tensor | float = 0.0  # of the window to the left
        for left, next_left in itertools.pairwise([*lefts, size[1]]):
            part = Window(top, bottom, left, min(left + window, size[1]))
            pixels = prepare(image.read(part))
            meta = dict(img_shape=part.size, ori_shape=part.size)
            logits = model.encode_decode(pixels, [meta])[0].cpu()
            if isinstance(right, Tensor):
                logits[:, :, : right.shape[2]] += right
            right = logits[:, :, next_left - left :].clone()
            logits = logits[:, :, : next_left - left]
            if top > 0:
                kept = min(tops[tops.index(top) - 1] + window, size[0]) - top
                above = np.array(carry[:, :kept, left:next_left])
                logits[:, :kept] += torch.from_numpy(above)
            unfinished[:, : bottom - next_top, left:next_left] = logits[:, next_top - top :]
            final = logits[:, : next_top - top]
            count = np.outer(rows[top:next_top], columns[left:next_left])
            final = final / torch.from_numpy(count)
            area = Window(top, next_top, left, next_left)
            labels.write(area, labels_from_logits(model, final[None]))
            done += 1
            report('windows', done, len(tops) * len(lefts))
        carry = unfinished
    return labels


def _counts(begins: list[int], window: int, length: int) -> np.ndarray:
    """Count the windows that cover each row or column."""
    counts = np.zeros(length, np.float32)
    for begin in begins:
        counts[begin : begin + window] += 1
    return counts


def _carries(folder: Path, shape: tuple[int, int, int]) -> list[np.ndarray]:
    """Create two arrays for the logits that the next row of windows adds to, in files."""
    if shape[1] == 0:
        return [np.empty(shape, np.float32)] * 2
    carries = [Rows(shape, folder / name) for name in ('carry_0.f32', 'carry_1.f32')]
    for carry in carries:
        carry.reserve()
    return [carry.map(0, shape[0], 'r+') for carry in carries]


@torch.no_grad()
def detect_windows(
    model: Any, image: Image, window: int, overlap: int, report: StepProgress
) -> dict[str, Tensor]:
    """Detect in windows at the image's own resolution; boxes are merged at the seams.

    Args:
        model (BaseDetector): The detector, in eval mode.
        image (Image): The image.
        window (int): Side of the windows in pixels.
        overlap (int): What neighbors have in common.
        report (callable): Called with ``windows``, those that are done, and all.

    Returns:
        dict[str, Tensor]: ``boxes`` (n, 4), ``scores`` and ``labels``, sorted by descending score.
    """
    from mmdet.structures import DetDataSample

    every = list(windows(image.shape[:2], window, overlap))
    found = []
    # The model's own preprocessor expects BGR, as mmcv reads.
    to_bgr = Prepare(3 if image.shape[2] in (1, 4) else image.shape[2], channel_order='bgr')
    for i, part in enumerate(every):
        meta = dict(img_shape=part.size, ori_shape=part.size, scale_factor=(1.0, 1.0))
        sample = DetDataSample(metainfo={**meta, 'img_id': i, 'img_path': ''})
        pixels = to_bgr(image.read(part))[0]
        (result,) = model.test_step({'inputs': [pixels], 'data_samples': [sample]})
        instances = result.pred_instances.cpu()
        shift = torch.tensor([part.left, part.top, part.left, part.top])
        source = torch.full((len(instances),), i)
        found.append((instances.bboxes + shift, instances.scores, instances.labels, source))
        report('windows', i + 1, len(every))
    boxes, scores, labels, sources = (torch.cat(part) for part in zip(*found, strict=True))
    return merge_boxes(boxes, scores, labels, sources)


def merge_boxes(
    boxes: Tensor, scores: Tensor, labels: Tensor, sources: Tensor
) -> dict[str, Tensor]:
    """Merge the boxes that different windows found of the same object.

    From the highest score on, a box takes in the boxes of its class from other windows that share
    at least half of the smaller one: an object that a window cuts off is found in part by it.
    Non-maximum suppression would keep one of the parts.

    Args:
        boxes (Tensor): (n, 4), x1, y1, x2, y2.
        scores (Tensor): (n).
        labels (Tensor): (n).
        sources (Tensor): Which window found each.
    """
    from mmdet.structures.bbox import bbox_overlaps

    order = scores.argsort(descending=True, stable=True)
    boxes, scores, labels, sources = (each[order] for each in (boxes, scores, labels, sources))
    is_left = torch.ones(len(boxes), dtype=torch.bool)
    kept, merged = [], []
    for i in range(len(boxes)):
        if not is_left[i]:
            continue
        one = boxes[i : i + 1]
        shared = torch.maximum(
            bbox_overlaps(one, boxes, 'iof')[0], bbox_overlaps(boxes, one, 'iof')[:, 0]
        )
        same = is_left & (labels == labels[i]) & (sources != sources[i]) & (shared >= SAME_OBJECT)
        same[i] = True
        is_left &= ~same
        kept.append(i)
        merged.append(torch.cat([boxes[same, :2].amin(0), boxes[same, 2:].amax(0)]))
    together = torch.stack(merged) if merged else boxes[:0]
    return {'boxes': together, 'scores': scores[kept], 'labels': labels[kept]}
