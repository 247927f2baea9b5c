"""Image to tokens: convolutional patch projection and 2-D sinusoidal position encoding."""

import itertools
import math
from typing import cast

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from .chunks import MIN_ROWS, chunk_length
from .layout import map_to_tokens
from .recompute import recomputed


class ConvNorm(nn.Module):
    """3x3 convolution of stride 2 without bias, then BatchNorm."""

    def __init__(self, in_channels: int, out_channels: int, norm_cfg: dict) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False)
        self.norm = build_norm_layer(norm_cfg, out_channels)[1]

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that this is with fixed statistics."""
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        weight = self.conv.weight * scale[:, None, None, None]
        return weight, self.norm.bias - self.norm.running_mean * scale


def has_fixed_statistics(norm: nn.Module) -> bool:
    """Whether a norm layer is a BatchNorm that does the same to every pixel of every image."""
    return (
        isinstance(norm, _BatchNorm)
        and not norm.training
        and norm.running_var is not None
        and norm.affine
    )


class ConvPatchEmbed(BaseModule):
    """Projects patches of 8x8 or 16x16 pixels to tokens by three or four convolutions.

    Sizes that the patch size does not divide round up.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Width d of the tokens.
        patch_size (int): 8 or 16.
        norm_cfg (dict): Config of the BatchNorm layers.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        norm_cfg: dict,
    ) -> None:
        super().__init__()
        halvings = int(math.log2(patch_size))
        widths = [in_channels, *(embed_dims >> i for i in reversed(range(halvings)))]
        self.embed_dims = embed_dims
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(ConvNorm(*pair, norm_cfg) for pair in pairs)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Returns the tokens (B, N, d) and the height and width of their grid."""
        layers = cast(list[ConvNorm], list(self.layers))
        fixed = all(has_fixed_statistics(layer.norm) for layer in layers)
        if fixed and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._over_strips(images)
        x = layers[0].conv(images)
        for layer, following in itertools.pairwise(layers):
            # What is between the convolutions is cheap, and would be two large maps to keep.
            x = recomputed(layer.norm, _norm_gelu_conv, x, layer.norm, following.conv)
        x = layers[-1].norm(x)
        return map_to_tokens(x), (x.shape[2], x.shape[3])

    def _over_strips(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """For inference: the first maps are the network's largest, and never exist as a whole."""
        kernels = [cast(ConvNorm, layer).folded() for layer in self.layers]
        heights = [images.shape[2]]
        for _ in kernels:
            heights.append(-(-heights[-1] // 2))
        width = -(-images.shape[3] // 2 ** len(kernels))
        images = images.contiguous(memory_format=torch.channels_last)
        # One row of tokens comes from 2^(n-1) rows of the first, widest map.
        per_row = len(images) * len(kernels[0][1]) * width * 4 ** (len(kernels) - 1)
        strip = chunk_length(heights[-1], per_row, images.device, MIN_ROWS)
        tokens = torch.empty(0)
        for start in range(0, heights[-1], strip):
            stop = min(start + strip, heights[-1])
            x = self._strip(images, kernels, heights, start, stop).permute(0, 2, 3, 1)
            if start == 0:
                tokens = x.new_empty(len(images), heights[-1], width, self.embed_dims)
            tokens[:, start:stop] = x
        return tokens.flatten(1, 2), (heights[-1], width)

    @staticmethod
    def _strip(
        images: Tensor,
        kernels: list[tuple[Tensor, Tensor]],
        heights: list[int],
        start: int,
        stop: int,
    ) -> Tensor:
        """Rows start...stop of the last map, from the rows of each map that they depend on."""
        ranges = [(start, stop)]
        for height in reversed(heights[:-1]):
            low, high = ranges[0]
            ranges.insert(0, (max(2 * low - 1, 0), min(2 * high, height)))
        low, high = ranges[0]
        x = images[:, :, low:high]
        for i, (weight, bias) in enumerate(kernels):
            # Rows beyond the image are zeros; rows beyond the strip are there.
            low, high = ranges[i + 1]
            top, bottom = max(1 - 2 * low, 0), max(2 * high - heights[i], 0)
            if top or bottom:
                x = F.pad(x, (0, 0, top, bottom))
            x = F.conv2d(x, weight, bias, stride=2, padding=(0, 1))
            if i + 1 < len(kernels):
                x = torch.ops.aten.gelu_(x)
        return x


def _norm_gelu_conv(x: Tensor, norm: nn.Module, conv: nn.Module) -> Tensor:
    return conv(F.gelu(norm(x)))


class SinusoidalPositionEncoding(BaseModule):
    """Encodes each coordinate in 32 dimensions and projects the 64 of them to the tokens' width.

    The encoding of a token is the sum of a term of its row and a term of its column, so the two
    are projected on their own and added over the grid.

    Args:
        embed_dims (int): Width d of the tokens.
    """

    dims_per_axis = 32
    temperature = 10000

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(2 * self.dims_per_axis, embed_dims, 1)

    def forward(self, height: int, width: int) -> Tensor:
        """Returns the encoding of the grid as tokens, (1, height * width, d)."""
        weight = self.projection.weight.flatten(1)
        for_rows, for_columns = weight.split(self.dims_per_axis, dim=1)
        rows = F.linear(self._axis(height), for_rows)
        columns = F.linear(self._axis(width), for_columns, self.projection.bias)
        return (rows[:, None] + columns[None]).flatten(0, 1)[None]

    def _axis(self, length: int) -> Tensor:
        """Sines and cosines of the positions 1...length scaled to 2π, (length, 32)."""
        like = self.projection.weight
        # In float32 at least, like the released models, whatever the weights' precision.
        dtype = torch.promote_types(like.dtype, torch.float32)
        position = torch.arange(1, length + 1, device=like.device, dtype=dtype)
        position = position / (length + 1e-6) * (2 * math.pi)
        index = torch.arange(self.dims_per_axis, device=like.device, dtype=dtype)
        frequency = self.temperature ** (2 * (index // 2) / self.dims_per_axis)
        angle = position[:, None] / frequency
        even = index % 2 == 0
        return torch.where(even, angle.sin(), angle.cos()).to(like.dtype)
