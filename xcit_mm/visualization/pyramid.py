"""Pyramid features as colors, and how fine they really are."""

from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import FigureBase
from torch import Tensor
from torch.nn import functional as F

from ..models.fast import rescale_over_strips, tokens_to_map
from ..models.trunk import XCiTTrunk
from ..models.xcit import XCiT
from .drawing import PANEL_TITLE_HEIGHT, PERCENTILES, TITLE_HEIGHT, WIDTH, Frame
from .images import Normalize, Preprocess
from .observe import Picture, run_picture

# The fraction of a level's variance that a coarser map must keep to be as informative.
KEPT = 0.9
# Positions or channels that are processed at a time.
CHUNK = 65536
CHANNELS = 16


class PyramidLevel(NamedTuple):
    """One level of the pyramid.

    Args:
        components (np.ndarray): The first three principal components, (H, W, 3).
        explained (float): Their share of the variance.
        layer (int): The layer whose output it was made from, counted from 1.
        stride (int): Image pixels per position.
        effective_stride (float): See :func:`effective_factor`; nan if all positions are equal.
    """

    components: np.ndarray
    explained: float
    layer: int
    stride: int
    effective_stride: float

    def colors(self) -> np.ndarray:
        """Return RGB in 0...1, (H, W, 3)."""
        low, high = np.percentile(self.components, PERCENTILES, axis=(0, 1))
        middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-12)
        return np.clip(0.5 + 0.5 * (self.components - middle) / half, 0, 1)

    def describe(self) -> str:
        """Say where it comes from, how fine it is and how much of it the colors show."""
        height, width = self.components.shape[:2]
        heading = f'stride {self.stride}: {width} x {height}, from layer {self.layer}\n'
        if np.isnan(self.effective_stride):
            return f'{heading}all positions are equal'
        return (
            f'{heading}effective stride {self.effective_stride:.1f}\n'
            f'{self.explained:.0%} of the variance shown'
        )


def pyramid_features(
    backbone: XCiTTrunk,
    image: np.ndarray,
    preprocess: Preprocess = Normalize(),  # noqa: B008  it never changes
    figure: bool = False,
) -> Any:
    """Return the levels as colors: their first three principal components as RGB.

    Args:
        backbone (XCiT): A backbone for dense prediction.
        image (np.ndarray): See :func:`as_rgb`.
        preprocess (callable): RGB image to tensor. Defaults to ImageNet's mean and deviation.
        figure (bool): Whether to return the figure as well. Defaults to False.

    Returns:
        list[PyramidLevel] or tuple[list[PyramidLevel], Figure]: From the finest to the coarsest.
    """
    return run_picture(PyramidFeatures(backbone), image, preprocess, figure)


def subtract_fixed_pattern(features: Tensor, period: int) -> None:
    """Subtract from enlarged features (d, H, W), in place, what repeats with every token.

    A transposed convolution adds a constant to each of the positions that it makes from a token.
    That checkerboard is the same for every image and would hide the differences.

    Args:
        features (Tensor): (d, H, W).
        period (int): Positions per token, in height and in width.
    """
    cells = features.unflatten(1, (-1, period)).unflatten(3, (-1, period))
    cells -= cells.mean((1, 3), keepdim=True)


def principal_components(features: Tensor) -> tuple[Tensor, float]:
    """Return the first three principal components of features (d, H, W), and their share.

    They are (3, H, W); their signs make the largest weight of each positive.
    """
    flat = features.flatten(1).float()
    mean = flat.mean(1, keepdim=True)
    covariance = flat.new_zeros(len(flat), len(flat))
    for part in flat.split(CHUNK, dim=1):
        covariance.addmm_(part - mean, (part - mean).t())
    variances, vectors = torch.linalg.eigh(covariance)
    vectors = vectors[:, -3:].flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    vectors = vectors * largest.sign()
    components = vectors.t() @ flat - vectors.t() @ mean
    share = variances[-3:].sum() / variances.sum().clamp_min(1e-30)
    return components.unflatten(1, features.shape[1:]), share.item()


def effective_factor(features: Tensor) -> float:
    """Return how much coarser a map could be and still be as informative, at least 1.

    Averaging over squares of 1, 2, 4, ... positions keeps less and less of the variance of
    features (d, H, W). This is the side, interpolated, at which :data:`KEPT` of it is kept.
    """
    kept = kept_by_pooling(features)
    if not kept[0] > 0:
        return float('nan')
    shares = kept / kept[0]
    octave = int(np.argmax(shares < KEPT))  # the last is 0: one square covers everything
    above, below = shares[octave - 1], shares[octave]
    return float(2 ** (octave - 1 + (above - KEPT) / (above - below)))


def kept_by_pooling(features: Tensor) -> np.ndarray:
    """Return the variance, over positions and channels, that pooling over 1, 2, 4, ... leaves."""
    octaves = max(features.shape[1:]).bit_length() + 1
    kept = np.zeros(octaves)
    for part in features.split(CHANNELS):
        sums = part.double() - part.double().mean((1, 2), keepdim=True)
        counts = torch.ones_like(sums[:1])
        for octave in range(octaves):
            kept[octave] += (sums.square() / counts).sum().item()
            # Twice as large squares; those at the border are smaller.
            sums, counts = (
                F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=1) for x in (sums, counts)
            )
    # Rounding errors of the mean are not variance.
    kept[kept < 1e-12 * features.square().sum().item()] = 0
    return kept


class PyramidFeatures(Picture):
    """The picture; see :func:`pyramid_features`."""

    def __init__(self, backbone: XCiTTrunk) -> None:
        if not isinstance(backbone, XCiT):
            raise ValueError('a classifier has no pyramid; dense backbones have one')
        self.backbone = backbone
        self.levels: list[PyramidLevel] = []

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        if depth - 1 not in self.backbone.out_indices:
            return
        features, stride = tokens_to_map(tokens, grid), self.backbone.patch_size
        if self.backbone.pyramid is not None:
            index = len(self.levels)
            stride = self.backbone.pyramid.strides[index]
            features = rescale_over_strips(self.backbone.pyramid.levels[index], features)
        features = features[0]
        if stride < self.backbone.patch_size:
            subtract_fixed_pattern(features, self.backbone.patch_size // stride)
        components, explained = principal_components(features)
        effective = stride * effective_factor(features)
        colors = components.permute(1, 2, 0).cpu().numpy()
        self.levels.append(PyramidLevel(colors, explained, depth, stride, effective))

    def result(self) -> list[PyramidLevel]:
        return self.levels

    def height(self, aspect: float) -> float:
        columns = len(self.backbone.out_indices) + 1
        return TITLE_HEIGHT + 3 * PANEL_TITLE_HEIGHT + WIDTH / columns * aspect

    def draw(self, canvas: FigureBase, frame: Frame) -> None:
        canvas.suptitle('Pyramid: three principal components as colors', fontsize='x-large')
        axes = canvas.subplots(1, len(self.levels) + 1)
        frame.show(axes[0])
        for panel, level in zip(axes[1:], self.levels, strict=True):
            frame.show_colors(panel, level.colors(), level.stride)
            panel.set_title(level.describe(), fontsize='medium')
