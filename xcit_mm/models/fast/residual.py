"""Adds the branches of a layer to its tokens, with LayerScale and stochastic depth."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .precision import autocast_dtype, is_half


def split_layer_scale(gamma: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Decide where a branch of tokens x is multiplied by LayerScale: in its weights, or after it.

    Folded into the last weights, it saves autograd from keeping the branch. But half precision
    cannot hold such weights: with the paper's γ = 1e-5, float16 rounds most of them to zero.

    Returns:
        tuple[Tensor, None] or tuple[None, Tensor]: What to fold, and the ``gamma`` of
        :func:`add_branch`.
    """
    return (None, gamma) if is_half(autocast_dtype(x) or x.dtype) else (gamma, None)


def path_scale(layer: Any, x: Tensor) -> Tensor | None:
    """Draw the factors of stochastic depth, one per sample (B, 1, 1); None if it is off.

    Args:
        layer (nn.Module): A layer with a ``drop_path``.
        x (Tensor): Tokens (B, N, d).
    """
    if not layer.drop_path.training or layer.drop_path.drop_prob == 0:
        return None
    return layer.drop_path(x.new_ones(x.shape[0], 1, 1))


def over_kept_samples(
    function: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, scale: Tensor | None
) -> Tensor:
    """Return ``function(x, scale)``, without computing it for samples that stochastic depth drops.

    On a GPU it is computed for all samples: looking at the factors would make the CPU wait.

    Args:
        function (callable): Returns tokens plus their branch times the factors.
        x (Tensor): Tokens (B, N, d).
        scale (Tensor, optional): The factors (B, 1, 1). Defaults to None, no stochastic depth.
    """
    if scale is None or len(x) < 2 or x.device.type != 'cpu':
        return function(x, scale)
    is_kept = [factor != 0 for factor in scale.flatten().tolist()]
    if not any(is_kept):
        is_kept[0] = True  # times 0: parameters get zeros as gradients, which DDP waits for
    runs = [(kept, len(list(run))) for kept, run in itertools.groupby(is_kept)]
    if len(runs) == 1:
        return function(x, scale)
    lengths = [length for _, length in runs]
    parts = zip(runs, x.split(lengths), scale.split(lengths), strict=True)
    return torch.cat([function(x, scale) if kept else x for (kept, _), x, scale in parts])


def add_branch(
    x: Tensor, branch: Tensor, gamma: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """Return ``x + scale · γ · branch``, where None is 1."""
    if gamma is None or scale is None:
        factor = scale if gamma is None else gamma
        return x + branch if factor is None else torch.addcmul(x, branch, factor)
    return torch.addcmul(x, branch, gamma * scale)
