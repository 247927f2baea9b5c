"""Runs local patch interaction.

Tokens in memory are a channels-last map, in which depth-wise convolution needs no transpose.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import LPI
from .chunks import strips
from .layout import map_to_tokens, tokens_to_map
from .recompute import recomputed
from .stem import has_fixed_statistics

# Rows of neighbors that a layer needs on either side: one for each of its 3x3 convolutions.
HALO = 2


def scaled_lpi(tokens: Tensor, lpi: LPI, gamma: Tensor | None, grid: tuple[int, int]) -> Tensor:
    """Return ``γ · LPI(x)``.

    Args:
        tokens (Tensor): Normalized tokens (B, N, d).
        lpi (LPI): The layer.
        gamma (Tensor, optional): LayerScale (d), folded into the second convolution; None leaves it
            out.
        grid (tuple[int, int]): Height and width of the tokens' grid.
    """

    def second_half(x: Tensor, gamma: Tensor | None) -> Tensor:
        x, conv = lpi.norm(F.gelu(x)), lpi.conv2
        if gamma is None:
            return conv(x)
        weight, bias = gamma[:, None, None, None] * conv.weight, gamma * cast(Tensor, conv.bias)
        return F.conv2d(x, weight, bias, padding=1, groups=len(gamma))

    if gamma is None and tokens.device.type != 'cpu':
        return lpi(tokens, grid)
    x = lpi.conv1(tokens_to_map(tokens, grid))
    # The steps between the convolutions are cheap; keeping their results would take two maps.
    return map_to_tokens(recomputed(lpi.norm, second_half, x, gamma))


def add_lpi(x: Tensor, lpi: LPI, norm: nn.LayerNorm, gamma: Tensor, grid: tuple[int, int]) -> None:
    """Add ``γ · LPI(LN(x))`` to x in place, for inference, over strips of rows.

    The two convolutions of a strip reach two rows beyond it on either side. The rows above have
    been overwritten by then, so copies of them are kept.

    Args:
        x (Tensor): Tokens (B, N, d).
        lpi (LPI): The layer.
        norm (nn.LayerNorm): The preceding LayerNorm.
        gamma (Tensor): LayerScale (d).
        grid (tuple[int, int]): Height and width of the tokens' grid.
    """
    height, width = grid
    pieces = strips(height, len(x) * width * x.shape[2], x.device)
    if len(pieces) == 1 or not has_fixed_statistics(lpi.norm):
        x.addcmul_(lpi(norm(x), grid), gamma)
        return
    rows = x.view(len(x), height, width, x.shape[2])
    above = rows[:, :0]
    for start, stop in pieces:
        piece = torch.cat([above, rows[:, start : stop + HALO]], dim=1)
        first = start - above.shape[1]
        above = piece[:, max(stop - HALO - first, 0) : stop - first].clone()
        y = lpi.conv1(norm(piece).permute(0, 3, 1, 2))
        # A row at a cut lacks a neighbor: it is wrong, and not needed.
        begin, end = max(start - 1, 0), min(stop + 1, height)
        y = lpi.conv2(lpi.norm(F.gelu(y[:, :, begin - first : end - first])))
        y = y[:, :, start - begin : stop - begin].permute(0, 2, 3, 1)
        rows[:, start:stop].addcmul_(y, gamma)
