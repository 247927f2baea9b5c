"""Runs the stem: patch projection and position encoding, of all tokens or of some rows."""

import itertools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import ConvNorm, ConvPatchEmbed, SinusoidalPositionEncoding
from ..layers.position import DIMS_PER_AXIS, encode_axis
from .chunks import strips
from .layout import map_to_tokens
from .operators import is_batch_norm
from .precision import autocast_dtype, without_autocast
from .recompute import recomputed

# Normalizes a map (B, C, h, W), in which only the rows between the two numbers are one's own.
NormalizeRows = Callable[[nn.Module, Tensor, int, int], Tensor]


def embed_for_training(stem: ConvPatchEmbed, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Return tokens (B, N, d) and their grid; keep one map between two convolutions, not three."""
    layers = _layers(stem)
    if images.device.type == 'cpu' and torch.backends.cpu.get_cpu_capability() == 'AVX512':
        # There, convolutions are faster in this layout: 10 to 25 % of the stem. With AVX2, slower.
        images = images.contiguous(memory_format=torch.channels_last)
    x = layers[0].conv(images)
    for layer, following in itertools.pairwise(layers):
        # The steps between the convolutions are cheap; keeping their results would take two maps.
        x = recomputed(layer.norm, _norm_gelu_conv, x, layer.norm, following.conv)
    x = layers[-1].norm(x)
    return map_to_tokens(x), (x.shape[2], x.shape[3])


def _norm_gelu_conv(x: Tensor, norm: nn.Module, conv: nn.Module) -> Tensor:
    return conv(F.gelu(norm(x)))


def embed_over_strips(stem: ConvPatchEmbed, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Return tokens (B, N, d) and their grid, for inference with fixed BatchNorm statistics.

    The first maps are the network's largest, and are never built as a whole.
    """
    layers = _layers(stem)
    height, width = (-(-side // 2 ** len(layers)) for side in images.shape[2:])
    # One row of tokens comes from 2^(n-1) rows of the first, widest map.
    per_row = len(images) * layers[0].conv.out_channels * width * 4 ** (len(layers) - 1)
    pieces = strips(height, per_row, images.device)
    if len(pieces) == 1 or not all(has_fixed_statistics(layer.norm) for layer in layers):
        return embed_for_training(stem, images)
    rows = StemRows(stem, images.shape[2])
    images = images.contiguous(memory_format=torch.channels_last)
    dtype = autocast_dtype(images) or images.dtype
    tokens = images.new_empty(len(images), height, width, stem.embed_dims, dtype=dtype)
    for start, stop in pieces:
        low, high = rows.pixels(start, stop)
        x = rows(images[:, :, low:high], start, stop)
        tokens[:, start:stop] = x.permute(0, 2, 3, 1)
    return tokens.flatten(1, 2), (height, width)


def has_fixed_statistics(norm: nn.Module) -> bool:
    """Return whether a norm layer is a BatchNorm that does the same to every pixel of any image."""
    if not is_batch_norm(norm) or norm.training:
        return False
    return norm.running_var is not None and norm.weight is not None


class StemRows:
    """Runs the stem for some rows of tokens, from the pixels that they depend on.

    Args:
        stem (ConvPatchEmbed): The stem.
        height (int): Height of the images.
        normalize (callable, optional): Runs the norm layers. Defaults to None: they have fixed
            statistics, which are folded into the convolutions.
    """

    def __init__(
        self, stem: ConvPatchEmbed, height: int, normalize: NormalizeRows | None = None
    ) -> None:
        self.layers = _layers(stem)
        self.normalize = normalize
        self.heights = [height]
        for _ in self.layers:
            self.heights.append(-(-self.heights[-1] // 2))
        self.kernels: list[tuple[Tensor, Tensor | None]] = [
            _fold(layer) if normalize is None else (layer.conv.weight, None)
            for layer in self.layers
        ]

    @property
    def num_rows(self) -> int:
        """The number of rows of tokens."""
        return self.heights[-1]

    def pixels(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows of the images that rows of tokens depend on."""
        return self._ranges(start, stop)[0]

    def _ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the rows of the images, and of each map, that rows of tokens depend on."""
        ranges = [(start, stop)]
        for height in reversed(self.heights[:-1]):
            low, high = ranges[0]
            ranges.insert(0, (max(2 * low - 1, 0), min(2 * high, height)))
        return ranges

    def __call__(self, pixels: Tensor, start: int, stop: int) -> Tensor:
        """Return rows start...stop of the last map, (B, d, rows, W), from :meth:`pixels`."""
        x, last = pixels, len(self.layers) - 1
        for i, (low, high) in enumerate(self._ranges(start, stop)[1:]):
            # Rows beyond the image are zeros; rows beyond the strip are in x already.
            top, bottom = max(1 - 2 * low, 0), max(2 * high - self.heights[i], 0)
            if top or bottom:
                x = F.pad(x, (0, 0, top, bottom))
            x = F.conv2d(x, *self.kernels[i], stride=2, padding=(0, 1))
            if self.normalize is not None:
                scale = 2 ** (last - i)
                own = (start * scale - low, min(stop * scale, self.heights[i + 1]) - low)
                x = self.normalize(self.layers[i].norm, x, *own)
            if i < last:
                x = F.gelu(x)
        return x


def _layers(stem: ConvPatchEmbed) -> list[ConvNorm]:
    return cast(list[ConvNorm], list(stem.layers))


def _fold(layer: ConvNorm) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the convolution that equals a ConvNorm with fixed statistics.

    ``torch.nn.utils.fusion`` would make parameters of them, in no fewer lines.
    """
    norm = layer.norm
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    weight = layer.conv.weight * scale[:, None, None, None]
    return weight, norm.bias - norm.running_mean * scale


def add_positions(
    x: Tensor,
    encoding: SinusoidalPositionEncoding,
    grid: tuple[int, int],
    start: int = 0,
    stop: int | None = None,
) -> Tensor:
    """Add the encoding of their positions to tokens, in the precision of the weights.

    The encoding of a token is the sum of a term for its row and a term for its column, so each is
    projected separately and the sum is taken over the grid. Autocast is for products: the residual
    stream stays as precise as the weights.

    Args:
        x (Tensor): Tokens (B, N, d) of some rows.
        encoding (SinusoidalPositionEncoding): The encoding.
        grid (tuple[int, int]): Height and width of the grid of all tokens.
        start (int): The first of the rows. Defaults to 0.
        stop (int, optional): The last one, exclusive. Defaults to None, the end of the grid.
    """
    height, width = grid
    with without_autocast(x):
        weight = encoding.projection.weight.flatten(1)
        for_rows, for_columns = weight.split(DIMS_PER_AXIS, dim=1)
        rows = F.linear(encode_axis(height, weight)[start:stop], for_rows)
        columns = F.linear(encode_axis(width, weight), for_columns, encoding.projection.bias)
        return x.to(weight.dtype) + (rows[:, None] + columns).flatten(0, 1)
