"""Runs the stem: patch projection and position encoding."""

import itertools
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


def embed_for_training(stem: ConvPatchEmbed, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Tokens (B, N, d) and their grid; keeps one map between two convolutions, not three."""
    layers = cast(list[ConvNorm], list(stem.layers))
    x = layers[0].conv(images)
    for layer, following in itertools.pairwise(layers):
        # The steps between the convolutions are cheap; keeping their results would take two maps.
        x = recomputed(layer.norm, _norm_gelu_conv, x, layer.norm, following.conv)
    x = layers[-1].norm(x)
    return map_to_tokens(x), (x.shape[2], x.shape[3])


def _norm_gelu_conv(x: Tensor, norm: nn.Module, conv: nn.Module) -> Tensor:
    return conv(F.gelu(norm(x)))


def embed_over_strips(stem: ConvPatchEmbed, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Tokens (B, N, d) and their grid, for inference with fixed BatchNorm statistics.

    The first maps are the network's largest, and are never built as a whole.
    """
    layers = cast(list[ConvNorm], list(stem.layers))
    heights = [images.shape[2]]
    for _ in layers:
        heights.append(-(-heights[-1] // 2))
    width = -(-images.shape[3] // 2 ** len(layers))
    # One row of tokens comes from 2^(n-1) rows of the first, widest map.
    per_row = len(images) * layers[0].conv.out_channels * width * 4 ** (len(layers) - 1)
    pieces = strips(heights[-1], per_row, images.device)
    if len(pieces) == 1 or not all(has_fixed_statistics(layer.norm) for layer in layers):
        return embed_for_training(stem, images)
    kernels = [_folded(layer) for layer in layers]
    images = images.contiguous(memory_format=torch.channels_last)
    dtype = autocast_dtype(images) or images.dtype
    tokens = images.new_empty(len(images), heights[-1], width, stem.embed_dims, dtype=dtype)
    for start, stop in pieces:
        x = _strip(images, kernels, heights, start, stop)
        tokens[:, start:stop] = x.permute(0, 2, 3, 1)
    return tokens.flatten(1, 2), (heights[-1], width)


def has_fixed_statistics(norm: nn.Module) -> bool:
    """Whether a norm layer is a BatchNorm that does the same to every pixel of every image."""
    if not is_batch_norm(norm) or norm.training:
        return False
    return norm.running_var is not None and norm.weight is not None


def _folded(layer: ConvNorm) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that equals a ConvNorm with fixed statistics."""
    norm = layer.norm
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    weight = layer.conv.weight * scale[:, None, None, None]
    return weight, norm.bias - norm.running_mean * scale


def _strip(
    images: Tensor, kernels: list[tuple[Tensor, Tensor]], heights: list[int], start: int, stop: int
) -> Tensor:
    """Rows start...stop of the last map, from the rows of each map that they depend on."""
    ranges = [(start, stop)]
    for height in reversed(heights[:-1]):
        low, high = ranges[0]
        ranges.insert(0, (max(2 * low - 1, 0), min(2 * high, height)))
    low, high = ranges[0]
    x = images[:, :, low:high]
    for i, (weight, bias) in enumerate(kernels):
        # Rows beyond the image are zeros; rows beyond the strip are in x already.
        low, high = ranges[i + 1]
        top, bottom = max(1 - 2 * low, 0), max(2 * high - heights[i], 0)
        if top or bottom:
            x = F.pad(x, (0, 0, top, bottom))
        x = F.conv2d(x, weight, bias, stride=2, padding=(0, 1))
        if i + 1 < len(kernels):
            x = F.gelu(x)
    return x


def add_positions(x: Tensor, encoding: SinusoidalPositionEncoding, grid: tuple[int, int]) -> Tensor:
    """Tokens plus the encoding of their positions, in the precision of the weights.

    The encoding of a token is the sum of a term for its row and a term for its column, so each is
    projected separately and the sum is taken over the grid. Autocast is for products: the residual
    stream stays as precise as the weights.

    Args:
        x (Tensor): Tokens (B, N, d).
        encoding (SinusoidalPositionEncoding): The encoding.
        grid (tuple[int, int]): Height and width of the tokens' grid.
    """
    height, width = grid
    with without_autocast(x):
        weight = encoding.projection.weight.flatten(1)
        for_rows, for_columns = weight.split(DIMS_PER_AXIS, dim=1)
        rows = F.linear(encode_axis(height, weight), for_rows)
        columns = F.linear(encode_axis(width, weight), for_columns, encoding.projection.bias)
        return x.to(weight.dtype) + (rows[:, None] + columns).flatten(0, 1)
