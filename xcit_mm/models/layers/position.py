"""2-D sinusoidal position encoding."""

import math

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn


class SinusoidalPositionEncoding(BaseModule):
    """Encodes each coordinate in 32 dimensions and projects the 64 of them to the tokens' width.

    Args:
        embed_dims (int): Width d of the tokens.
    """

    dims_per_axis = 32
    temperature = 10000

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(2 * self.dims_per_axis, embed_dims, 1)

    def forward(self, height: int, width: int) -> Tensor:
        """Returns the encoding of a grid as tokens, (1, height * width, d)."""
        rows = self.encode_axis(height)[:, None].expand(-1, width, -1)
        columns = self.encode_axis(width)[None].expand(height, -1, -1)
        encoding = torch.cat([rows, columns], dim=2).permute(2, 0, 1)
        return self.projection(encoding[None]).flatten(2).transpose(1, 2)

    def encode_axis(self, length: int) -> Tensor:
        """Sines and cosines of the positions 1...length scaled to 2π, (length, 32)."""
        like = self.projection.weight
        # In float32 at least, like the released models, whatever the precision of the weights.
        dtype = torch.promote_types(like.dtype, torch.float32)
        position = torch.arange(1, length + 1, device=like.device, dtype=dtype)
        position = position / (length + 1e-6) * (2 * math.pi)
        index = torch.arange(self.dims_per_axis, device=like.device, dtype=dtype)
        frequency = self.temperature ** (2 * (index // 2) / self.dims_per_axis)
        angle = position[:, None] / frequency
        return torch.where(index % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)
