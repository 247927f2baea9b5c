"""Runs the feed-forward branch over chunks of tokens.

Its hidden layer is four times as wide as the tokens and would be the largest tensor of a layer.
Over chunks of tokens only a piece of it exists at a time, small enough for the processor's cache.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import FeedForward
from .chunks import sample_chunks, token_chunks
from .operators import gelu_backward, is_batched, layer_norm_backward, layer_norm_statistics
from .precision import at_least_float32, autocast_dtype, without_autocast
from .residual import (
    add_branch,
    combine,
    layer_scale_gradient,
    scale_gradient,
    split_layer_scale,
)


def feed_forward_residual(
    x: Tensor,
    ffn: FeedForward,
    norm: nn.LayerNorm,
    gamma: Tensor,
    scale: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """Return ``x + scale · γ · FFN(LN(x))``, for training.

    Args:
        x (Tensor): Tokens (B, N, d).
        ffn (FeedForward): The network.
        norm (nn.LayerNorm): The preceding LayerNorm.
        gamma (Tensor): LayerScale (d).
        scale (Tensor, optional): Factor of stochastic depth, one per sample (B, 1, 1). Defaults to
            None.
        recompute (bool): Whether backward recomputes the hidden layer, chunk by chunk, instead of
            keeping it: one more product of N·4d² out of 33, and 4 N·d fewer floats per layer.
            Defaults to False.
    """
    if x.device.type != 'cpu' and not recompute:
        # A GPU computes all tokens at once, and its time goes into moving what is recomputed.
        return add_branch(x, ffn(norm(x)), gamma, scale)
    dtype = autocast_dtype(x) or x.dtype
    folded, gamma_after = split_layer_scale(gamma, x)
    with without_autocast(x):
        weight1, bias1 = ffn.fc1.weight.to(dtype), ffn.fc1.bias.to(dtype)
        weight2: Tensor = ffn.fc2.weight
        bias2: Tensor = ffn.fc2.bias
        if folded is not None:
            weight2, bias2 = folded[:, None] * weight2, folded * bias2
        return _ChunkedFeedForward.apply(
            x.contiguous(),
            scale,
            gamma_after,
            norm.weight,
            norm.bias,
            weight1,
            bias1,
            weight2.to(dtype),
            bias2.to(dtype),
            norm.eps,
            recompute,
        )


def add_feed_forward(x: Tensor, ffn: FeedForward, norm: nn.LayerNorm, gamma: Tensor) -> None:
    """Add ``γ · FFN(LN(x))`` to x in place, for inference; see :func:`feed_forward_residual`."""
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        tokens = x.view(-1, x.shape[2])  # a view, never a copy: it is written to
        weight1, bias1 = ffn.fc1.weight.to(dtype), ffn.fc1.bias.to(dtype)
        weight2, bias2 = ffn.fc2.weight.to(dtype), ffn.fc2.bias.to(dtype)
        for chunk in token_chunks(tokens, len(weight1)):
            piece = tokens[chunk]
            hidden = F.gelu(F.linear(norm(piece).to(dtype), weight1, bias1))
            piece.addcmul_(F.linear(hidden, weight2, bias2), gamma)


class _ChunkedFeedForward(torch.autograd.Function):
    """The residual branch with a hand-written backward.

    It keeps x and, unless it recomputes, the hidden layer; with LayerScale outside of the weights,
    also the branch. Backward recomputes LayerNorm and GELU: both are cheap next to the products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
        gamma: Tensor | None,
        norm_weight: Tensor,
        norm_bias: Tensor,
        weight1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        bias2: Tensor,
        eps: float,
        recompute: bool,
    ) -> Tensor:
        out = torch.empty_like(x)
        hidden = branch = None
        if any(ctx.needs_input_grad) and not recompute:  # a frozen layer has no backward
            hidden = x.new_empty(*x.shape[:2], len(weight1), dtype=weight1.dtype)
        if ctx.needs_input_grad[2]:
            branch = torch.empty_like(x, dtype=weight2.dtype)
        factor = _factors(x, gamma, scale)
        for chunk in sample_chunks(x, len(weight1)):
            tokens = x[chunk]
            normed = F.layer_norm(tokens, norm_weight.shape, norm_weight, norm_bias, eps)
            piece = _linear(normed.to(weight1.dtype), weight1, bias1, hidden, chunk)
            added = _linear(F.gelu(piece), weight2, bias2, branch, chunk)
            if factor is None:
                torch.add(tokens, added, out=out[chunk])
            else:
                torch.addcmul(tokens, added, factor[chunk[0]], out=out[chunk])
        ctx.eps = eps
        ctx.save_for_backward(
            *(x, scale, gamma, norm_weight, norm_bias, weight1, bias1, weight2, bias2),
            *(hidden, branch),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # By create_graph=True, or by is_grads_batched=True.
        if torch.is_grad_enabled() or is_batched(grad):
            return _plain_backward(ctx, grad)
        x, scale, *parameters, hidden, branch = ctx.saved_tensors
        gamma, norm_weight, norm_bias, weight1, bias1, weight2, _ = parameters
        dtype, factor = weight1.dtype, _factors(x, gamma, scale)
        grad_x = torch.empty_like(x)
        totals: list[Tensor | None] = [None] * len(parameters)
        for chunk in sample_chunks(x, len(weight1)):
            tokens, grad_out = x[chunk], grad[chunk]
            normed, mean, rstd = layer_norm_statistics(tokens, norm_weight, norm_bias, ctx.eps)
            normed = normed.to(dtype)
            piece = _linear(normed, weight1, bias1) if hidden is None else hidden[chunk]
            if factor is None:
                grad_branch = grad_out.to(dtype)
            else:
                grad_branch = scale_gradient(grad_out, factor[chunk[0]], dtype)
            grad_piece = gelu_backward(grad_branch @ weight2, piece)
            grad_chunk, *of_norm = layer_norm_backward(
                (grad_piece @ weight1).to(x.dtype), tokens, mean, rstd, norm_weight, norm_bias
            )
            torch.add(grad_out, grad_chunk, out=grad_x[chunk])
            if branch is not None:
                scales = None if scale is None else scale[chunk[0]]
                of_gamma = layer_scale_gradient(grad_out, branch[chunk], scales)
                totals[0] = _add(totals[0], of_gamma)
            of_first = grad_piece.flatten(0, 1), normed.flatten(0, 1)
            of_second = grad_branch.flatten(0, 1), F.gelu(piece).flatten(0, 1)
            totals = [
                totals[0],
                *map(_add, totals[1:3], of_norm),
                _add_product(totals[3], *of_first),
                _add(totals[4], of_first[0].sum(0)),
                _add_product(totals[5], *of_second),
                _add(totals[6], of_second[0].sum(0)),
            ]
        pairs = zip(totals, parameters, ctx.needs_input_grad[2:], strict=False)
        grads = [_as_gradient(*pair) if needed else None for *pair, needed in pairs]
        return grad_x, None, *grads, None, None


def _plain_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of backward, by operators that autograd can differentiate and batch.

    torch's ``once_differentiable`` is not enough: ``autograd.grad`` does not raise its error, but
    returns a second derivative that lacks this branch.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:9]]
        x, scale, gamma, norm_weight, norm_bias, weight1, bias1, weight2, bias2 = inputs
        normed = F.layer_norm(x, norm_weight.shape, norm_weight, norm_bias, ctx.eps)
        hidden = F.gelu(F.linear(normed.to(weight1.dtype), weight1, bias1))
        out = add_branch(x, F.linear(hidden, weight2, bias2), gamma, scale)
    wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad)


def _factors(x: Tensor, gamma: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """Return ``scale · γ`` of each sample, (B, 1, 1 or d); None if both are."""
    if gamma is None and scale is None:
        return None
    return combine(gamma, scale).expand(len(x), 1, -1)


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None, chunk: Any = None
) -> Tensor:
    """Return a linear layer of x, in a chunk of ``out`` if there is one."""
    if out is None:
        return F.linear(x, weight, bias)
    out = out[chunk]
    torch.addmm(bias, x.flatten(0, 1), weight.t(), out=out.flatten(0, 1))
    return out


def _as_gradient(total: Tensor | None, parameter: Tensor) -> Tensor:
    """Return a sum over chunks; of no chunks, if the batch is empty, zeros."""
    return torch.zeros_like(parameter) if total is None else total.to(parameter.dtype)


def _add(total: Tensor | None, value: Tensor) -> Tensor:
    """Add to a sum over chunks. Two or more are summed at least in float32."""
    return value if total is None else at_least_float32(total).add_(value)


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Add ``leftᵀ @ right`` to a sum over chunks."""
    if total is None:
        return left.t() @ right
    total = at_least_float32(total)
    if left.dtype == total.dtype:
        return total.addmm_(left.t(), right)
    return total.add_(left.t() @ right)
