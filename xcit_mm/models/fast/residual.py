"""Adds the branches of a layer to its tokens, with stochastic depth."""

from typing import Any

from torch import Tensor


def path_scale(layer: Any, x: Tensor) -> Tensor | None:
    """Draw the factors of stochastic depth, one per sample (B, 1, 1); None if it is off.

    Args:
        layer (nn.Module): A layer with a ``drop_path``.
        x (Tensor): Tokens (B, N, d).
    """
    if not layer.drop_path.training or layer.drop_path.drop_prob == 0:
        return None
    return layer.drop_path(x.new_ones(x.shape[0], 1, 1))


def add_branch(x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    """Return ``x + scale · branch``, where no scale is 1."""
    return x + (branch if scale is None else branch * scale)
