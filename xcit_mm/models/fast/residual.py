"""Adds the branches of a layer to its tokens, with LayerScale and stochastic depth."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .operators import is_batched, is_compiling
from .precision import autocast_dtype, is_half

NUM_BRANCHES = 3


def split_layer_scale(gamma: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Decide where a branch of tokens x is multiplied by LayerScale: in its weights, or after it.

    Folded into the last weights, it saves autograd from keeping the branch. But half precision
    cannot hold such weights: with the paper's γ = 1e-5, float16 rounds most of them to zero. And a
    GPU would launch five more kernels.

    Returns:
        tuple[Tensor, None] or tuple[None, Tensor]: What to fold, and the ``gamma`` of
        :func:`add_branch`.
    """
    is_folded = x.device.type == 'cpu' and not is_half(autocast_dtype(x) or x.dtype)
    return (gamma, None) if is_folded else (None, gamma)


def path_scales(layer: Any, x: Tensor) -> list[Tensor | None]:
    """Draw the factors of stochastic depth, for each branch one per sample (B, 1, 1).

    On a CPU they are those that mmcv's ``DropPath`` draws for one branch after another.

    Args:
        layer (nn.Module): A layer with a ``drop_path``; None for each branch if that is off.
        x (Tensor): Tokens (B, N, d).
    """
    if not layer.drop_path.training or layer.drop_path.drop_prob == 0:
        return [None] * NUM_BRANCHES
    keep = 1 - layer.drop_path.drop_prob
    draws = torch.rand(NUM_BRANCHES, len(x), 1, 1, dtype=x.dtype, device=x.device)
    return list(draws.add_(keep).floor_().div_(keep))


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
    if gamma is None and scale is None:
        return x + branch
    if torch.is_grad_enabled() and not is_compiling():
        return _AddBranch.apply(x, branch, gamma, scale)
    return torch.addcmul(x, branch, combine(gamma, scale))


def combine(gamma: Tensor | None, scale: Tensor | None) -> Tensor:
    """Return ``scale · γ``, (B, 1, d), or the one that is not None."""
    factors = [factor for factor in (gamma, scale) if factor is not None]
    return factors[0] if len(factors) == 1 else factors[0] * factors[1]


def scale_gradient(grad: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``grad · factor`` in a type, in one step that rounds once; not differentiable."""
    return torch.mul(grad, factor, out=torch.empty_like(grad, dtype=dtype))


def layer_scale_gradient(grad: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    """Return the gradient of γ, (d), from those of the tokens (B, N, d)."""
    if scale is None:
        return (grad * branch).sum((0, 1))
    return torch.mv((grad * branch).sum(1).mT, scale.flatten())


class _AddBranch(torch.autograd.Function):
    """``addcmul``, whose own backward has one more pass over the branch, and one more rounding."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor, gamma: Tensor | None, scale: Tensor | None
    ) -> Tensor:
        factor = combine(gamma, scale)
        ctx.dtype = branch.dtype
        ctx.save_for_backward(branch if ctx.needs_input_grad[2] else None, factor, scale, gamma)
        return torch.addcmul(x, branch, factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        branch, factor, scale, gamma = ctx.saved_tensors
        grad_branch = grad_gamma = None
        if ctx.needs_input_grad[1]:
            if torch.is_grad_enabled() or is_batched(grad):
                # With a factor that autograd can differentiate once more.
                grad_branch = (grad * combine(gamma, scale)).to(ctx.dtype)
            else:
                grad_branch = scale_gradient(grad, factor, ctx.dtype)
        if ctx.needs_input_grad[2]:
            grad_gamma = layer_scale_gradient(grad, branch, scale)
        return grad, grad_branch, grad_gamma, None
