"""2-D sinusoidal position encoding."""

import math

import torch
import torch.fx
from mmengine.model import BaseModule
from torch import Tensor, nn

DIMS_PER_AXIS = 32
TEMPERATURE = 10000


class SinusoidalPositionEncoding(BaseModule):
    """Encodes each coordinate in 32 dimensions and projects all 64 to the tokens' width.

    Args:
        embed_dims (int): Width d of the tokens.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(2 * DIMS_PER_AXIS, embed_dims, 1)

    def forward(self, height: int, width: int) -> Tensor:
        """Returns the encoding of a grid as tokens, (1, height * width, d)."""
        rows = encode_axis(height, self.projection.weight)[:, None].expand(-1, width, -1)
        columns = encode_axis(width, self.projection.weight)[None].expand(height, -1, -1)
        encoding = torch.cat([rows, columns], dim=2).permute(2, 0, 1)
        return self.projection(encoding[None]).flatten(2).transpose(1, 2)


@torch.fx.wrap  # a tracer of torch.fx does not know the length
def encode_axis(length: int, like: Tensor) -> Tensor:
    """Sines and cosines of the positions 1...length scaled to 2π, (length, 32).

    Args:
        length (int): Number of positions.
        like (Tensor): Gives the dtype and the device.
    """
    # At least in float32, as in the released models, regardless of the precision of the weights.
    # Not by torch.promote_types, which torch 2.1 cannot compile.
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    position = torch.arange(1, length + 1, device=like.device, dtype=dtype)
    position = position / (length + 1e-6) * (2 * math.pi)
    index = torch.arange(DIMS_PER_AXIS, device=like.device, dtype=dtype)
    frequency = TEMPERATURE ** (2 * (index // 2) / DIMS_PER_AXIS)
    angle = position[:, None] / frequency
    return torch.where(index % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)
