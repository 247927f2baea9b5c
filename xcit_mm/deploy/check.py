"""Compares an exported model with the one that it was made from.

The exported model is run by :class:`xcit_mm_runtime.Model`, as users run it. The other is mmdet's
or mmseg's own, through its own preprocessing and prediction.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from xcit_mm_runtime import Model
from xcit_mm_runtime.masks import paste

from ..datasets.shapes.draw import draw_scene

# Batch, height and width. The sides of the second are odd: padding and rounding show there.
SIZES = ((1, 256, 320), (1, 203, 277), (2, 192, 160))

Outputs = dict[str, np.ndarray]


class Tolerances(NamedTuple):
    """The largest allowed differences.

    Args:
        values (float): Logits and features, in parts of the largest one, or of 1.
        boxes (float): Corners of boxes, in parts of the longer side of the image.
        scores (float): Scores of boxes.
        masks (float): Probabilities of masks pasted into the image, which mmdet gives in steps of
            1/255.
        unmatched (float): How many detections may lack a partner, of the model and of the file
            together, per detection: 2 if none has one. Non-maximum suppression is not continuous:
            where two boxes overlap by just the threshold, or two scores are equal, the last bit
            decides.
    """

    values: float
    boxes: float
    scores: float
    masks: float
    unmatched: float


# With fewer bits, the numbers differ. What is broken differs by more than this.
TOLERANCES = {
    'float32': Tolerances(1e-4, 1e-4, 1e-3, 0.02, 0.05),
    'float16': Tolerances(0.02, 0.01, 0.02, 0.25, 0.2),
    'int8': Tolerances(0.25, 0.05, 0.25, 1.0, 1.0),
}


@dataclass
class ExportReport:
    """Result of a comparison.

    Args:
        passed (bool): Whether everything is within its tolerance.
        tolerances (dict): What was allowed.
        cases (list[dict]): One per size: the size, and the largest differences.
    """

    passed: bool
    tolerances: dict[str, float]
    cases: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for case in self.cases:
            numbers = (f'{k} {_short(v)}' for k, v in case.items() if k not in ('size', 'passed'))
            verdict = 'agrees' if case['passed'] else 'DIFFERS'
            batch, height, width = case['size']
            lines.append(f'  {batch} x {height}x{width}: {verdict}; {", ".join(numbers)}')
        allowed = ', '.join(f'{name} {value:g}' for name, value in self.tolerances.items())
        return '\n'.join([*lines, f'  allowed: {allowed}'])


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f'{value:.1e}' if value < 0.01 else f'{value:.4f}'


def draw_images(images: Sequence[np.ndarray], channels: int) -> Iterator[np.ndarray]:
    """Yield batches (B, H, W, C) of uint8 in BGR, one per size of :data:`SIZES`.

    Args:
        images (Sequence[np.ndarray]): The user's images, which are resized; if there are none,
            scenes of shapes are drawn.
        channels (int): C. Channels are repeated, or left out, as necessary.
    """
    rng = np.random.default_rng(0)
    for position, (batch, height, width) in enumerate(SIZES):
        if images:
            chosen = [images[(position + i) % len(images)] for i in range(batch)]
            drawn = [cv2.resize(image, (width, height)) for image in chosen]
        else:
            drawn = [draw_scene(rng, height, width).image for _ in range(batch)]
        yield np.stack(drawn)[..., [i % 3 for i in range(channels)]]


def compare(model: Any, exported: Model, images: Sequence[np.ndarray] = ()) -> ExportReport:
    """Compare an exported model with the one that it was made from.

    Args:
        model (nn.Module): The detector or segmentor.
        exported (Model): The exported one.
        images (Sequence[np.ndarray]): As for :func:`draw_images`. Defaults to ().
    """
    compare_one = {
        'detection': _compare_detections,
        'segmentation': _compare_segmentations,
        'features': _compare_features,
    }[exported.task]
    allowed = TOLERANCES[exported.metadata.precision]
    names = allowed._fields[1:] if exported.task == 'detection' else allowed._fields[:1]
    report = ExportReport(True, {name: getattr(allowed, name) for name in names})
    for batch in draw_images(images, model.backbone.in_channels):
        with torch.no_grad():
            case = compare_one(model, batch, exported.run_batch(batch), allowed)
        report.cases.append({'size': batch.shape[:3], **case})
        report.passed &= case['passed']
    return report


def _loaded(batch: np.ndarray) -> dict[str, Any]:
    """Return images as a data loader gives them that does not resize."""
    size = batch.shape[1:3]
    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    pixels = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)))
    samples = [BaseDataElement(metainfo=meta) for _ in batch]
    return {'inputs': list(pixels), 'data_samples': samples}


def _compare_features(
    model: Any, batch: np.ndarray, outputs: Outputs, allowed: Tolerances
) -> dict[str, Any]:
    expected = model.backbone(model.data_preprocessor(_loaded(batch))['inputs'])
    return _differences(expected, list(outputs.values()), allowed)


def _compare_segmentations(
    model: Any, batch: np.ndarray, outputs: Outputs, allowed: Tolerances
) -> dict[str, Any]:
    samples = model.test_step(_loaded(batch))
    expected = torch.stack([sample.seg_logits.data for sample in samples])
    if 'labels' in outputs:
        labels = torch.stack([sample.pred_sem_seg.data[0] for sample in samples]).long()
        given = torch.from_numpy(outputs['labels']).long()
        return _compare_labels(expected, labels, given, allowed)
    logits = outputs['logits']
    if expected.shape[1] == 1:  # mmseg gives the probability of the only class
        logits = 1 / (1 + np.exp(-logits))
    case = _differences([expected], [logits], allowed)
    if 'values' in case and expected.shape[1] > 1:
        case['same labels'] = float((logits.argmax(1) == expected.argmax(1).numpy()).mean())
    return case


def _compare_labels(
    logits: Tensor, expected: Tensor, given: Tensor, allowed: Tolerances
) -> dict[str, Any]:
    """Compare labels, which may differ only where two classes are equally likely."""
    count = int((expected != given).sum())
    if logits.shape[1] == 1:
        return {'different labels': count, 'passed': not count}
    gap = logits.gather(1, expected[:, None]) - logits.gather(1, given[:, None])
    scale = max(1.0, float(logits.abs().max()))
    passed = bool((gap <= 2 * allowed.values * scale).all())
    return {'different labels': count, 'passed': passed}


def _differences(
    expected: Sequence[Tensor], given: Sequence[np.ndarray], allowed: Tolerances
) -> dict[str, Any]:
    worst = 0.0
    for ours, theirs in zip(given, expected, strict=True):
        if ours.shape != tuple(theirs.shape):
            return {'shape': list(ours.shape), 'expected': list(theirs.shape), 'passed': False}
        scale = max(1.0, float(theirs.abs().max()))
        worst = max(worst, float(np.abs(ours - theirs.numpy()).max()) / scale)
    return {'values': worst, 'passed': worst <= allowed.values}  # NaN does not pass


def _compare_detections(
    model: Any, batch: np.ndarray, outputs: Outputs, allowed: Tolerances
) -> dict[str, Any]:
    with _whole_images(model), _mask_probabilities(model):
        samples = model.test_step(_loaded(batch))
    total, unmatched, size = 0, 0, batch.shape[1:3]
    worst = dict.fromkeys((name for name in outputs if name != 'labels'), 0.0)
    for i, sample in enumerate(samples):
        found, count = sample.pred_instances.numpy(), int((outputs['labels'][i] >= 0).sum())
        expected = {'boxes': found.bboxes, **{k: found[k] for k in outputs if k in found}}
        given = {name: value[i][:count] for name, value in outputs.items()}
        pairs = match(expected, given, max(size), allowed)
        total += max(len(found), count)
        unmatched += len(found) + count - 2 * len(pairs)
        for name, value in _pair_differences(expected, given, pairs, size).items():
            worst[name] = max(worst[name], value)
    passed = unmatched <= allowed.unmatched * total and worst.get('masks', 0) <= allowed.masks
    return {'detections': total, 'unmatched': unmatched, **worst, 'passed': passed}


@contextmanager
def _whole_images(model: Any) -> Iterator[None]:
    """Let a detector see whole images, as its graph does: the runtime cuts windows."""
    windows = model.test_cfg.pop('windows', None)
    try:
        yield
    finally:
        if windows is not None:
            model.test_cfg['windows'] = windows


@contextmanager
def _mask_probabilities(model: Any) -> Iterator[None]:
    """Let mmdet give masks as probabilities in steps of 1/255, not as bits."""
    if not model.roi_head.with_mask:
        yield
        return
    cfg = model.roi_head.test_cfg
    threshold, cfg.mask_thr_binary = cfg.mask_thr_binary, -1
    try:
        yield
    finally:
        cfg.mask_thr_binary = threshold


def match(
    expected: Outputs, given: Outputs, side: int, allowed: Tolerances
) -> list[tuple[int, int]]:
    """Pair each detection of the model with one of the file that is the same within tolerances.

    Args:
        expected (dict[str, np.ndarray]): What the model found.
        given (dict[str, np.ndarray]): What the file found.
        side (int): The longer side of the image.
        allowed (Tolerances): The tolerances.
    """
    boxes = np.abs(expected['boxes'][:, None] - given['boxes']).max(2, initial=0) / side
    scores = np.abs(expected['scores'][:, None] - given['scores'])
    same = expected['labels'][:, None] == given['labels']
    possible = same & (boxes <= allowed.boxes) & (scores <= allowed.scores)
    distance = np.where(possible, boxes, np.inf)
    pairs: list[tuple[int, int]] = []
    for i, row in enumerate(distance):
        if row.min(initial=np.inf) < np.inf:
            pairs.append((i, int(row.argmin())))
            distance[:, pairs[-1][1]] = np.inf  # one box cannot be the partner of two
    return pairs


def _pair_differences(
    expected: Outputs, given: Outputs, pairs: list[tuple[int, int]], size: tuple[int, int]
) -> dict[str, float]:
    if not pairs:
        return {}
    theirs, ours = (list(side) for side in zip(*pairs, strict=True))
    result = {
        name: float(np.abs(expected[name][theirs] - given[name][ours]).max()) / scale
        for name, scale in (('boxes', max(size)), ('scores', 1))
    }
    if 'masks' in given:
        pasted = paste(given['masks'][ours], given['boxes'][ours], size, None)
        difference = np.abs(pasted - expected['masks'][theirs] / np.float32(255))
        # mmdet rounds down.
        result['masks'] = max(float(difference.max()) - 1 / 255, 0.0)
    return result
