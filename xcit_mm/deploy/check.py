"""Runs an exported file and the model next to each other, and says where they differ.

The model is mmdet's or mmseg's own, through its own preprocessing and prediction. Nothing of the
graph that was exported takes part in it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..datasets.shapes.draw import draw_scene
from .metadata import normalization

# Batch, height and width. The sides of the second are odd: padding and rounding show there.
SIZES = ((1, 256, 320), (1, 203, 277), (2, 192, 160))


class Tolerances(NamedTuple):
    """What may differ.

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

Run = Callable[[np.ndarray], dict[str, np.ndarray]]


@dataclass
class Report:
    """What was compared.

    Args:
        passed (bool): Whether everything is within its tolerance.
        tolerances (dict): What was allowed.
        cases (list[dict]): One per size: the size, and the largest differences.
    """

    passed: bool
    tolerances: dict[str, float]
    cases: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

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
    """Batches (B, H, W, C) of uint8 in BGR, one per size of :data:`SIZES`.

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
        stacked = np.stack(drawn)
        yield stacked[..., [i % 3 for i in range(channels)]]


def compare(
    model: Any,
    run: Run,
    task: str,
    raw_order: str | None,
    images: Sequence[np.ndarray],
    precision: str = 'float32',
) -> Report:
    """Compare a file with the model that it was made from.

    Args:
        model (nn.Module): The detector or segmentor.
        run (callable): Runs the file: its input to its outputs by name.
        task (str): ``detection``, ``segmentation`` or ``features``.
        raw_order (str, optional): Order of the channels of a file that takes raw values, ``rgb`` or
            ``bgr``; None for one that takes what the network takes.
        images (Sequence[np.ndarray]): As for :func:`draw_images`.
        precision (str): Which of :data:`TOLERANCES` hold. Defaults to ``float32``.
    """
    compare_one = {
        'detection': _compare_detections,
        'segmentation': _compare_logits,
        'features': _compare_features,
    }[task]
    allowed = TOLERANCES[precision]
    names = allowed._fields[1:] if task == 'detection' else allowed._fields[:1]
    report = Report(True, {name: getattr(allowed, name) for name in names})
    for batch in draw_images(images, model.backbone.in_channels):
        outputs = run(file_input(model.data_preprocessor, batch, raw_order))
        case = {'size': batch.shape[:3], **compare_one(model, batch, outputs, allowed)}
        report.cases.append(case)
        report.passed &= case['passed']
    return report


def file_input(preprocessor: Any, batch: np.ndarray, raw_order: str | None) -> np.ndarray:
    """What a file takes, (B, C, H, W), for images (B, H, W, C) in BGR."""
    x = batch.transpose(0, 3, 1, 2)
    if raw_order is not None:
        swap = raw_order == 'rgb' and x.shape[1] == 3
        return np.ascontiguousarray(x[:, ::-1] if swap else x)
    if converts(preprocessor) and x.shape[1] == 3:
        x = x[:, ::-1]
    x = x.astype(np.float32)
    mean, std = normalization(preprocessor)
    if mean is not None:
        shape = (1, -1, 1, 1)
        x = (x - np.array(mean, x.dtype).reshape(shape)) / np.array(std, x.dtype).reshape(shape)
    return np.ascontiguousarray(x)


def converts(preprocessor: Any) -> bool:
    """Whether a data_preprocessor reverses the channels, which images have in BGR."""
    names = ('_channel_conversion', 'channel_conversion')  # mmengine's and mmseg's
    return any(getattr(preprocessor, name, False) for name in names)


def _predict(model: Any, batch: np.ndarray, kind: type[BaseDataElement]) -> list[Any]:
    """The model's own predictions."""
    data = {'inputs': _tensors(batch), 'data_samples': _samples(batch, kind)}
    with torch.no_grad():
        return model.test_step(data)


def _samples(batch: np.ndarray, kind: type[BaseDataElement]) -> list[BaseDataElement]:
    """What the pipeline says about images that it did not resize."""
    size = batch.shape[1:3]
    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    return [kind(metainfo=meta) for _ in batch]


def _tensors(batch: np.ndarray) -> list[Tensor]:
    return list(torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2))))


def _compare_features(
    model: Any, batch: np.ndarray, outputs: dict[str, np.ndarray], allowed: Tolerances
) -> dict[str, Any]:
    data = {'inputs': _tensors(batch), 'data_samples': _samples(batch, BaseDataElement)}
    with torch.no_grad():
        expected = model.backbone(model.data_preprocessor(data)['inputs'])
    return _differences(expected, list(outputs.values()), allowed)


def _compare_logits(
    model: Any, batch: np.ndarray, outputs: dict[str, np.ndarray], allowed: Tolerances
) -> dict[str, Any]:
    from mmseg.structures import SegDataSample

    samples = _predict(model, batch, SegDataSample)
    expected = torch.stack([sample.seg_logits.data for sample in samples])
    if 'logits' in outputs:
        logits = outputs['logits']
        if expected.shape[1] == 1:  # mmseg gives the probability of the only class
            logits = 1 / (1 + np.exp(-logits))
        case = _differences([expected], [logits], allowed)
        if 'values' in case and len(logits[0]) > 1:
            case['same labels'] = float((logits.argmax(1) == expected.argmax(1).numpy()).mean())
        return case
    return _compare_labels(expected, samples, outputs['labels'], allowed)


def _compare_labels(
    logits: Tensor, samples: list[Any], labels: np.ndarray, allowed: Tolerances
) -> dict[str, Any]:
    """Labels may differ only where two classes are equally likely, within the tolerance."""
    expected = torch.stack([sample.pred_sem_seg.data[0] for sample in samples]).long()
    given = torch.from_numpy(labels).long()
    different = expected != given
    if logits.shape[1] == 1:
        return {'different labels': int(different.sum()), 'passed': not different.any()}
    gap = logits.gather(1, expected[:, None]) - logits.gather(1, given[:, None])
    scale = max(1.0, float(logits.abs().max()))
    return {
        'different labels': int(different.sum()),
        'passed': bool((gap[:, 0] <= 2 * allowed.values * scale).all()),
    }


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


def _compare_detections(
    model: Any, batch: np.ndarray, outputs: dict[str, np.ndarray], allowed: Tolerances
) -> dict[str, Any]:
    from mmdet.structures import DetDataSample

    with _mask_probabilities(model):
        samples = _predict(model, batch, DetDataSample)
    total, unmatched = 0, 0
    worst = dict.fromkeys(('boxes', 'scores', *(['masks'] if 'masks' in outputs else [])), 0.0)
    for i, sample in enumerate(samples):
        instances, count = sample.pred_instances, int((outputs['labels'][i] >= 0).sum())
        given = {name: torch.from_numpy(value[i][:count]) for name, value in outputs.items()}
        pairs = match(instances, given, max(batch.shape[1:3]), allowed)
        total += max(len(instances), count)
        unmatched += len(instances) + count - 2 * len(pairs)
        for name, value in _pair_differences(instances, given, pairs, batch.shape[1:3]).items():
            worst[name] = max(worst[name], value)
    case: dict[str, Any] = {'detections': total, 'unmatched': unmatched, **worst}
    case['passed'] = (
        unmatched <= allowed.unmatched * total and worst.get('masks', 0) <= allowed.masks
    )
    return case


def match(
    instances: Any, given: dict[str, Tensor], side: int, allowed: Tolerances
) -> list[tuple[int, int]]:
    """Pair each detection of the model with one of the file that is the same within tolerances.

    Args:
        instances (InstanceData): What the model found.
        given (dict[str, Tensor]): What the file found.
        side (int): The longer side of the image.
        allowed (Tolerances): The tolerances.
    """
    boxes = (instances.bboxes[:, None] - given['boxes'][None]).abs().amax(-1) / side
    scores = (instances.scores[:, None] - given['scores'][None]).abs()
    same = instances.labels[:, None] == given['labels'][None]
    possible = same & (boxes <= allowed.boxes) & (scores <= allowed.scores)
    pairs: list[tuple[int, int]] = []
    for i, row in enumerate(possible):
        free = [j for j in row.nonzero().flatten().tolist() if j not in {b for _, b in pairs}]
        if free:
            pairs.append((i, min(free, key=lambda j: float(boxes[i, j]))))
    return pairs


def _pair_differences(
    instances: Any,
    given: dict[str, Tensor],
    pairs: list[tuple[int, int]],
    size: tuple[int, int],
) -> dict[str, float]:
    if not pairs:
        return {}
    theirs, ours = (torch.tensor(side) for side in zip(*pairs, strict=True))
    boxes = (instances.bboxes[theirs] - given['boxes'][ours]).abs().max() / max(size)
    scores = (instances.scores[theirs] - given['scores'][ours]).abs().max()
    result = {'boxes': float(boxes), 'scores': float(scores)}
    if 'masks' in given:
        pasted = paste(given['masks'][ours], given['boxes'][ours], size)
        difference = (pasted - instances.masks[theirs].float() / 255).abs()
        # mmdet rounds down.
        result['masks'] = float((difference - 1 / 255).clamp_min(0).max())
    return result


def paste(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (D, h, w) in an image of this size, (D, height, width), as mmdet pastes them."""
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    pasted = masks.new_zeros(len(masks), *size)
    for i in range(len(masks)):  # as mmdet on a CPU, which cuts a mask off just outside its box
        values, place = _do_paste_mask(masks[i, None, None], boxes[i, None], *size)
        pasted[i][place] = values[0]
    return pasted
