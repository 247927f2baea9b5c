"""Cross-covariance attention maps, how sharp they are, and the learnt temperatures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import FigureBase
from torch import Tensor

from ..models.fast import StatisticsSum, attention_from_statistics
from ..models.trunk import XCiTTrunk
from .drawing import TITLE_HEIGHT, WIDTH, Frame
from .images import Normalize, Preprocess
from .observe import Picture, choose_layers, run_picture

# Fraction of the figure's width for the maps; the curves get the rest.
MAPS_SHARE = 0.66
# The colors end this many factors of 2 away from uniform attention.
MAX_OCTAVES = 5.0


class CrossCovariance(NamedTuple):
    """The result of :func:`cross_covariance`.

    Args:
        attention (np.ndarray): The maps A, (layers, heads, d/h, d/h); rows add up to 1.
        entropy (np.ndarray): Mean entropy of the rows over that of uniform attention, (all layers,
            heads): 1 is uniform, 0 is a single channel.
        temperature (np.ndarray): The learnt factor 1/τ, (all layers, heads).
    """

    attention: np.ndarray
    entropy: np.ndarray
    temperature: np.ndarray


def cross_covariance(
    backbone: XCiTTrunk,
    image: np.ndarray,
    layers: Sequence[int] | None = None,
    preprocess: Preprocess = Normalize(),  # noqa: B008  it never changes
    figure: bool = False,
) -> Any:
    """Return the d/h x d/h attention maps of heads and layers, their entropy and temperatures.

    Args:
        backbone (XCiTTrunk): An ``XCiT`` or ``XCiTClassifier``.
        image (np.ndarray): See :func:`as_rgb`.
        layers (Sequence[int], optional): Layers whose maps to return, counted from 1. Defaults to
            None, all.
        preprocess (callable): RGB image to tensor. Defaults to ImageNet's mean and deviation.
        figure (bool): Whether to return the figure as well. Defaults to False.

    Returns:
        CrossCovariance or tuple[CrossCovariance, Figure]: The arrays.
    """
    return run_picture(CrossCovarianceMaps(backbone, layers), image, preprocess, figure)


def relative_entropy(attention: Tensor) -> Tensor:
    """Return the mean entropy of the rows of maps (..., n, n), over that of uniform rows."""
    rows = torch.special.entr(attention).sum(-1)
    return rows.mean(-1) / max(np.log(attention.shape[-1]), 1e-12)


class CrossCovarianceMaps(Picture):
    """The picture; see :func:`cross_covariance`."""

    def __init__(self, backbone: XCiTTrunk, layers: Sequence[int] | None = None) -> None:
        self.backbone = backbone
        self.layers = choose_layers(backbone, layers)
        self.maps: list[np.ndarray] = []
        self.entropy: list[np.ndarray] = []

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        if depth == len(self.backbone.layers):
            return
        layer: Any = self.backbone.layers[depth]
        S, bias = StatisticsSum(layer.xca, layer.norm1).add(tokens).result()
        attention = attention_from_statistics(layer.xca, S, bias)
        self.entropy.append(relative_entropy(attention)[0].cpu().numpy())
        if depth in self.layers:
            self.maps.append(attention[0].cpu().numpy())

    def result(self) -> CrossCovariance:
        layers: Any = self.backbone.layers
        temperatures = [layer.xca.temperature.detach().float().flatten() for layer in layers]
        temperature = torch.stack(temperatures).cpu().numpy()
        return CrossCovariance(np.stack(self.maps), np.stack(self.entropy), temperature)

    def height(self, aspect: float) -> float:
        side = MAPS_SHARE * WIDTH / (len(self.layers) + 1)
        return TITLE_HEIGHT + max(5.0, self.backbone.variant.num_heads * side)

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        result = self.result()
        canvas.suptitle('Cross-covariance attention', fontsize='x-large')
        sides: Any = canvas.subfigures(1, 2, width_ratios=(MAPS_SHARE, 1 - MAPS_SHARE))
        left, right = sides
        self._draw_maps(left, result.attention)
        above, below = right.subplots(2, 1, sharex=True)
        _draw_curves(above, result.entropy, 'entropy over that of uniform attention')
        above.set_ylim(max(-0.02, result.entropy.min() - 0.1), 1.02)
        above.legend(title='head', ncols=4, fontsize='small', loc='lower left')
        _draw_curves(below, result.temperature, 'learnt temperature 1/τ')
        below.set_xlabel('layer')

    def _draw_maps(self, canvas: FigureBase, attention: np.ndarray) -> None:
        octaves = np.log2(np.maximum(attention, 1e-12) * attention.shape[-1])
        limit = min(MAX_OCTAVES, max(1.0, float(np.percentile(np.abs(octaves), 99))))
        axes: Any = canvas.subplots(attention.shape[1], len(attention), squeeze=False)
        for i, j in np.ndindex(axes.shape):
            drawn = axes[i, j].imshow(octaves[j, i], cmap='RdBu_r', vmin=-limit, vmax=limit)
            axes[i, j].set(xticks=[], yticks=[])
            if i == 0:
                axes[i, j].set_title(f'layer {self.layers[j] + 1}', fontsize='medium')
            if j == 0:
                axes[i, j].set_ylabel(f'head {i + 1}')
        unit = 'attention over uniform attention, as a power of 2'
        canvas.colorbar(drawn, ax=axes, label=unit, extend='both', pad=0.01, aspect=40)


def _draw_curves(axes: Any, values: np.ndarray, label: str) -> None:
    depth = np.arange(1, len(values) + 1)
    for head, curve in enumerate(values.T):
        axes.plot(depth, curve, marker='o', markersize=3, linewidth=1.2, label=str(head + 1))
    axes.plot(depth, values.mean(1), color='black', linewidth=2.5, label='mean')
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
