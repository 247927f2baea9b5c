"""Local patch interaction (section 3.3 of the paper)."""

from typing import cast

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from .chunks import MIN_ROWS, chunk_length
from .layout import map_to_tokens, tokens_to_map
from .recompute import recomputed
from .stem import has_fixed_statistics


class LPI(BaseModule):
    """Lets neighbouring tokens communicate: two depth-wise 3x3 convolutions.

    GELU and BatchNorm are between them. Tokens in memory are a channels-last map, in which
    depth-wise convolution needs no transpose.

    Args:
        embed_dims (int): Width d of the tokens.
        norm_cfg (dict): Config of the BatchNorm.
    """

    def __init__(self, embed_dims: int, norm_cfg: dict) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, tokens: Tensor, grid: tuple[int, int], gamma: Tensor) -> Tensor:
        """Filter tokens (B, N, d) on their grid.

        Args:
            tokens (Tensor): The tokens, normalised by the layer.
            grid (tuple[int, int]): Height and width of their grid.
            gamma (Tensor): LayerScale (d), folded into the second convolution.
        """
        x = self.conv1(tokens_to_map(tokens, grid))
        # What is between the convolutions is cheap, and would be two maps to keep.
        return map_to_tokens(recomputed(self.norm, self._second_half, x, gamma))

    def _second_half(self, x: Tensor, gamma: Tensor) -> Tensor:
        weight = gamma[:, None, None, None] * self.conv2.weight
        bias = gamma * cast(Tensor, self.conv2.bias)
        return F.conv2d(self.norm(F.gelu(x)), weight, bias, padding=1, groups=len(gamma))

    def add_to(self, x: Tensor, grid: tuple[int, int], norm: nn.LayerNorm, gamma: Tensor) -> None:
        """``x += γ · LPI(LN(x))`` in place, for inference, over strips of rows.

        The two convolutions of a strip reach two rows beyond it on either side. Those above have
        been overwritten by then, so they are kept.

        Args:
            x (Tensor): Tokens (B, N, d).
            grid (tuple[int, int]): Height and width of their grid.
            norm (nn.LayerNorm): The LayerNorm in front.
            gamma (Tensor): LayerScale (d).
        """
        if not has_fixed_statistics(self.norm):
            x.add_(self(norm(x), grid, gamma))
            return
        height, width = grid
        rows = x.view(len(x), height, width, x.shape[2])
        strip = chunk_length(height, len(x) * width * x.shape[2], x.device, MIN_ROWS)
        weight, bias = (
            gamma[:, None, None, None] * self.conv2.weight,
            gamma * cast(Tensor, self.conv2.bias),
        )
        above = rows[:, :0]
        for start in range(0, height, strip):
            stop = min(start + strip, height)
            piece = torch.cat([above, rows[:, start : stop + 2]], dim=1)
            first = start - above.shape[1]
            above = piece[:, max(stop - 2 - first, 0) : stop - first].clone()
            y = self.conv1(norm(piece).permute(0, 3, 1, 2))
            # A row at a cut lacks a neighbour: it is wrong, and not needed.
            begin, end = max(start - 1, 0), min(stop + 1, height)
            y = self.norm(torch.ops.aten.gelu_(y[:, :, begin - first : end - first]))
            y = F.conv2d(y, weight, bias, padding=1, groups=len(gamma))
            y = y[:, :, start - begin : stop - begin]
            rows[:, start:stop] += y.permute(0, 2, 3, 1)
