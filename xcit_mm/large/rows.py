"""The backbone over rows of its token grid.

A layer needs two things from the rest of the image: the sums over all tokens from which the
covariance form of the attention follows, and two rows of neighbors on either side for the local
patch interaction. The stem needs the pixels around its rows. Everything else is local.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.fast.chunks import add_product, chunks
from ..models.fast.covariance import assemble, attention_from_statistics, linear_map
from ..models.fast.feed_forward import add_feed_forward
from ..models.fast.lpi import add_lpi
from ..models.layers import ConvNorm, SinusoidalPositionEncoding, XCiTLayer
from ..models.layers.position import DIMS_PER_AXIS, encode_axis

# Rows of neighbors that a layer needs on either side: one for each of its 3x3 convolutions.
HALO = 2

# Normalizes a map (B, C, h, W), in which only the rows between the two numbers are one's own.
Normalize = Callable[[nn.Module, Tensor, int, int], Tensor]


def stem_heights(height: int, num_layers: int) -> list[int]:
    """Heights of the image and of each map of the stem."""
    heights = [height]
    for _ in range(num_layers):
        heights.append(-(-heights[-1] // 2))
    return heights


def stem_ranges(heights: list[int], start: int, stop: int) -> list[tuple[int, int]]:
    """The rows of the image, and of each map of the stem, that rows of tokens depend on.

    Args:
        heights (list[int]): What :func:`stem_heights` returned.
        start (int): First row of tokens.
        stop (int): Last row, exclusive.
    """
    ranges = [(start, stop)]
    for height in reversed(heights[:-1]):
        low, high = ranges[0]
        ranges.insert(0, (max(2 * low - 1, 0), min(2 * high, height)))
    return ranges


def _as_it_is(norm: nn.Module, x: Tensor, first: int, last: int) -> Tensor:
    return norm(x)


def embed_rows(
    trunk: Any,
    pixels: Tensor,
    height: int,
    start: int,
    stop: int,
    normalize: Normalize = _as_it_is,
) -> Tensor:
    """Rows of tokens with their positions, (B, rows, W, d).

    Args:
        trunk (XCiTTrunk): The backbone.
        pixels (Tensor): The rows of the images that they depend on, (B, C, h, width); see
            :func:`stem_ranges`.
        height (int): Height of the images.
        start (int): First row of tokens.
        stop (int): Last row, exclusive.
        normalize (callable): Runs BatchNorm. Defaults to the module itself, which must have fixed
            statistics.
    """
    layers = cast(list[ConvNorm], list(trunk.patch_embed.layers))
    heights = stem_heights(height, len(layers))
    ranges = stem_ranges(heights, start, stop)
    x = pixels
    for i, layer in enumerate(layers):
        # Rows beyond the image are zeros; rows beyond the strip are in x already.
        low, high = ranges[i + 1]
        top, bottom = max(1 - 2 * low, 0), max(2 * high - heights[i], 0)
        if top or bottom:
            x = F.pad(x, (0, 0, top, bottom))
        x = F.conv2d(x, layer.conv.weight, stride=2, padding=(0, 1))
        scale = 2 ** (len(layers) - 1 - i)
        own = (start * scale - low, min(stop * scale, heights[i + 1]) - low)
        x = normalize(layer.norm, x, *own)
        if i + 1 < len(layers):
            x = F.gelu(x)
    x = x.permute(0, 2, 3, 1)
    return x + encode_rows(trunk.pos_embed, (heights[-1], x.shape[2]), start, stop)


def encode_rows(
    encoding: SinusoidalPositionEncoding, grid: tuple[int, int], start: int, stop: int
) -> Tensor:
    """The encoding of the positions of some rows of a grid, (rows, W, d)."""
    weight = encoding.projection.weight.flatten(1)
    for_rows, for_columns = weight.split(DIMS_PER_AXIS, dim=1)
    rows = F.linear(encode_axis(grid[0], weight)[start:stop], for_rows)
    columns = F.linear(encode_axis(grid[1], weight), for_columns, encoding.projection.bias)
    return rows[:, None] + columns


class Statistics:
    """Sums over the normalized tokens of an image, piece by piece, in float64.

    Args:
        layer (XCiTLayer): The layer whose attention they are for.
    """

    def __init__(self, layer: XCiTLayer) -> None:
        self.layer = layer
        weight = layer.norm1.weight
        dims = len(weight)
        self.second = weight.new_zeros(dims, dims, dtype=torch.float64)
        self.first = weight.new_zeros(dims, dtype=torch.float64)
        self.count = 0
        self.origin: Tensor | None = None

    def add(self, tokens: Tensor) -> None:
        """Add tokens (n, d), as they enter the layer. The first of all serves as the origin."""
        for chunk in chunks(tokens, tokens.shape[1]):
            normed = self.layer.norm1(tokens[chunk])
            if self.origin is None:
                self.origin = normed[:1].clone()
            normed = normed - self.origin
            self.second += normed.T @ normed
            self.first += normed.sum(0)
        self.count += len(tokens)

    def linear_map(self) -> tuple[Tensor, Tensor]:
        """The attention and all around it as one map of the tokens: weight (d, d) and bias (d)."""
        if self.origin is None:
            raise ValueError('no tokens have been added')
        xca, gamma = self.layer.xca, self.layer.gamma1
        S = assemble(self.second[None], self.first[None], self.count)
        attention = attention_from_statistics(xca, S, xca.qkv(self.origin))
        weight, bias = linear_map(xca, attention, xca.qkv.bias, gamma)
        return weight[0].to(gamma.dtype), bias[0].to(gamma.dtype)

    def state(self) -> dict[str, np.ndarray]:
        """What a file must hold to continue with them."""
        if self.origin is None:
            raise ValueError('no tokens have been added')
        tensors = {'second': self.second, 'first': self.first, 'origin': self.origin}
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return {**arrays, 'count': np.array(self.count)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Continue with what :meth:`state` returned."""
        device = self.second.device
        self.second = torch.from_numpy(state['second']).to(device)
        self.first = torch.from_numpy(state['first']).to(device)
        self.origin = torch.from_numpy(state['origin']).to(device)
        self.count = int(state['count'])


def run_rows(
    layer: XCiTLayer, linear: tuple[Tensor, Tensor], x: Tensor, start: int, stop: int
) -> Tensor:
    """Run a layer over rows of tokens, for inference; overwrites them.

    Args:
        layer (XCiTLayer): The layer, in eval mode.
        linear (tuple[Tensor, Tensor]): What :meth:`Statistics.linear_map` returned.
        x (Tensor): Rows with their neighbors, (rows, W, d).
        start (int): First of the rows that are wanted.
        stop (int): Last one, exclusive.

    Returns:
        Tensor: (stop - start, W, d).
    """
    rows, width, dims = x.shape
    weight, bias = linear
    tokens = x.view(-1, dims)
    for chunk in chunks(tokens, dims):
        piece = tokens[chunk]
        add_product(piece, layer.norm1(piece), weight.T)
        piece += bias
    add_lpi(tokens[None], layer.lpi, layer.norm3, layer.gamma3, (rows, width))
    own = tokens[start * width : stop * width]
    add_feed_forward(own[None], layer.ffn, layer.norm2, layer.gamma2)
    return own.view(stop - start, width, dims)
