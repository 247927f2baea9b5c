"""Which places raised the score of a detection or a class: gradient times activation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from xcit_mm_runtime.errors import ImageError

from ..inference.predictors import CheckpointPredictor
from ..models.trunk import XCiTTrunk
from .drawing import TITLE_HEIGHT, WIDTH, Frame, HeatMaps
from .observe import choose_layers

COLUMNS = 3


def gradient_maps(
    backbone: XCiTTrunk, score: Callable[[], Tensor], layers: Sequence[int] | None = None
) -> np.ndarray:
    """Return how much each token after each layer adds to a score, to first order.

    That is the gradient of the score times the token, summed over the channels: how fast the score
    falls as the token fades to zero (HiResCAM's element-wise product). Unlike Grad-CAM, which
    averages the gradient over the image, it is zero where the score does not depend on the tokens.

    Args:
        backbone (XCiTTrunk): The network whose tokens are looked at.
        score (callable): Runs a model with this backbone on one image and returns a number.
        layers (Sequence[int], optional): Layers counted from 1. Defaults to None, all.

    Returns:
        np.ndarray: (layers, H, W); negative where a token lowers the score.
    """
    chosen = choose_layers(backbone, layers)
    seen: dict[int, tuple[Tensor, tuple[int, int]]] = {}

    def record(index: int) -> Callable:
        def hook(module: Any, inputs: tuple, tokens: Tensor) -> None:
            if index in seen or len(tokens) != 1:
                raise ValueError('it is seen in more than one window; cut out a part')
            if not tokens.requires_grad:  # all before it is frozen
                tokens.requires_grad_()
            seen[index] = tokens, inputs[1]

        return hook

    handles = [backbone.layers[i].register_forward_hook(record(i)) for i in chosen]
    # Layers that run again in backward would call the hooks again.
    with_cp, backbone.with_cp = backbone.with_cp, False
    try:
        with torch.enable_grad():
            value = score()
        tokens = [seen[i][0] for i in chosen]
        gradients = torch.autograd.grad(value, tokens, allow_unused=True)
    finally:
        backbone.with_cp = with_cp
        for handle in handles:
            handle.remove()
    maps = [
        torch.zeros(x.shape[1]) if g is None else (g * x).detach()[0].sum(-1).float().cpu()
        for x, g in zip(tokens, gradients, strict=True)
    ]
    return torch.stack(maps).unflatten(1, seen[chosen[0]][1]).numpy()


@dataclass
class Explanation:
    """The maps of one detection or one class, with what they are drawn on.

    Args:
        maps (np.ndarray): (layers, H, W); see :func:`gradient_maps`.
        layers (Sequence[int]): Their layers, counted from 1.
        title (str): What they explain.
        image (np.ndarray): RGB, as large as the model saw it, with the detections in question.
        stride (int): Image pixels per token.
    """

    maps: np.ndarray
    layers: Sequence[int]
    title: str
    image: np.ndarray
    stride: int

    def draw(self) -> Figure:
        """Draw what raised the score, each layer relative to its largest value."""
        raised = np.maximum(self.maps, 0)
        raised /= np.maximum(raised.max((1, 2), keepdims=True), np.finfo(np.float32).tiny)
        heat_maps = HeatMaps(
            self.title,
            [f'layer {layer}' for layer in self.layers],
            {'': list(raised)},
            COLUMNS,
            self.stride,
            'share of the largest value',
            relative=True,
        )
        frame = Frame(self.image)
        height = heat_maps.height(frame.aspect)
        figure = Figure(figsize=(WIDTH, height + TITLE_HEIGHT), layout='constrained')
        heat_maps.draw(figure, frame)
        return figure


def explain(
    predictor: CheckpointPredictor,
    image: np.ndarray,
    *,
    detection: int | None = None,
    label: int | None = None,
    layers: Sequence[int] | None = None,
) -> Explanation:
    """Explain the score of one detection, or the sum of the scores of one class.

    Args:
        predictor (CheckpointPredictor): A detector; for a class, a segmentor as well.
        image (np.ndarray): BGR.
        detection (int, optional): Which detection, counted from 1, the highest score first.
        label (int, optional): Else, the index of the class. A segmentor's scores are the logits of
            the pixels that it gives this class.
        layers (Sequence[int], optional): Layers counted from 1. Defaults to None, all.

    Raises:
        ImageError: If there is no such detection, none of the class, or more than one window.
    """
    samples, backbone = [], predictor.model.backbone

    def score() -> Tensor:
        samples.append(predictor.run(image))
        scores, labels = _scores(samples[0])
        if not scores.requires_grad:
            raise ImageError('the scores of this model have no gradient')
        return scores[_choose(scores, labels, detection, label, predictor.classes)].sum()

    maps = gradient_maps(backbone, score, layers)
    sample = samples[0]
    height, width = sample.img_shape[:2]
    seen = mmcv.imresize(image, (width, height))
    what = f'class {predictor.classes[label]}' if label is not None else f'detection {detection}'
    if predictor.task == 'detection':
        found = sample.pred_instances
        chosen = _choose(*_scores(sample), detection, label, predictor.classes)
        sample.pred_instances = found[chosen]
        part: Any = predictor.result(sample)
        scale = np.tile((width / image.shape[1], height / image.shape[0]), 2)
        part = replace(part, boxes=part.boxes * scale, masks=None)
        seen = part.draw(seen, score_thr=-1)
        if detection is not None:
            what += f' of {len(found)}, {part.names[0]} {part.scores[0]:.2f}'
    return Explanation(
        maps,
        [i + 1 for i in choose_layers(backbone, layers)],
        f'What raised the score of {what}: gradient times activation',
        mmcv.bgr2rgb(seen),
        backbone.patch_size,
    )


def _scores(sample: Any) -> tuple[Tensor, Tensor]:
    """Return the scores of detections or pixels and their classes."""
    if 'pred_instances' in sample:
        return sample.pred_instances.scores, sample.pred_instances.labels
    labels, logits = sample.pred_sem_seg.data, sample.seg_logits.data
    if len(logits) == 1:  # the score of class 1 of 2
        logits = torch.cat([-logits, logits])
    return logits.gather(0, labels)[0], labels[0]


def _choose(
    scores: Tensor, labels: Tensor, detection: int | None, label: int | None, classes: Sequence[str]
) -> Tensor:
    """Return the index of a detection, or a mask of a class; see :func:`explain`."""
    if label is not None:
        if not (labels == label).any():
            raise ImageError(f'no {classes[label]} was found in it')
        return labels == label
    if detection is None or detection > len(scores):
        raise ImageError(f'it has only {len(scores)} detections')
    return scores.argsort(descending=True, stable=True)[detection - 1 : detection]
