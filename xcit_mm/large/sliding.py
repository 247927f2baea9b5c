"""The usual sliding window over a large image, for comparison, and for other heads and detectors.

Each window sees nothing of the rest of the image, and the pixels where windows overlap are computed
more than once. The windows are read from the file one by one; those of
:mod:`..models.sliding_windows` are cut from an image in memory.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.windows import (
    Window,
    WindowDetections,
    cut_windows,
    merge_windows,
    window_starts,
)

from .images import Image, Prepare
from .labels import LabelFile
from .segment import StepProgress, labels_from_logits
from .store import Rows


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
    tops, lefts = (window_starts(side, window, overlap) for side in size)
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
) -> WindowDetections:
    """Detect in windows at the image's own resolution, and merge what they found at the seams.

    Args:
        model (BaseDetector): The detector, in eval mode.
        image (Image): The image.
        window (int): Side of the windows in pixels.
        overlap (int): What neighbors have in common.
        report (callable): Called with ``windows``, those that are done, and all.
    """
    from mmdet.structures import DetDataSample

    from ..models.sliding_windows import detections_of

    size = image.shape[:2]
    every = cut_windows(size, window, overlap)
    found = []
    # The model's own preprocessor expects BGR, as mmcv reads.
    to_bgr = Prepare(3 if image.shape[2] in (1, 4) else image.shape[2], channel_order='bgr')
    for i, part in enumerate(every):
        meta = dict(img_shape=part.size, ori_shape=part.size, scale_factor=(1.0, 1.0))
        sample = DetDataSample(metainfo={**meta, 'img_id': i, 'img_path': ''})
        pixels = to_bgr(image.read(part))[0]
        (result,) = model.test_step({'inputs': [pixels], 'data_samples': [sample]})
        found.append(detections_of(part, result))
        report('windows', i + 1, len(every))
    return merge_windows(every, found, size)
