"""Runs a layer over some rows of the token grid, in inference.

A layer needs two things from the rest of the image: the sums over all tokens from which the
covariance form of its attention follows, and :data:`HALO` rows of neighbors on either side for the
local patch interaction. Everything else is local.
"""

from torch import Tensor

from ..layers import XCiTLayer
from .feed_forward import add_feed_forward
from .lpi import add_lpi
from .xca import add_linear_map


def run_rows(
    layer: XCiTLayer, linear: tuple[Tensor, Tensor], x: Tensor, start: int, stop: int
) -> Tensor:
    """Run a layer over rows of tokens, which are overwritten.

    Args:
        layer (XCiTLayer): The layer, in eval mode.
        linear (tuple[Tensor, Tensor]): The attention, from :meth:`StatisticsSum.linear_map`.
        x (Tensor): Rows with their neighbors, (rows, W, d).
        start (int): First of the rows that are wanted.
        stop (int): Last one, exclusive.

    Returns:
        Tensor: (stop - start, W, d).
    """
    rows, width, dims = x.shape
    tokens = x.view(1, -1, dims)
    add_linear_map(tokens, layer.norm1, *linear, layer.gamma1)
    add_lpi(tokens, layer.lpi, layer.norm3, layer.gamma3, (rows, width))
    own = tokens[:, start * width : stop * width]
    add_feed_forward(own, layer.ffn, layer.norm2, layer.gamma2)
    return own.view(stop - start, width, dims)
