"""Runs the feed-forward branch over chunks of tokens.

Its hidden layer is four times as wide as the tokens and would be the largest tensor of a layer.
Over chunks of tokens only a piece of it exists at a time, small enough for the processor's cache.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import FeedForward
from .chunks import add_product, token_chunks
from .operators import gelu_backward, is_batched, layer_norm_backward, layer_norm_statistics
from .precision import autocast_dtype, without_autocast


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
        gamma (Tensor): LayerScale (d), folded into the last linear layer.
        scale (Tensor, optional): Factor of stochastic depth, one per sample (B, 1, 1). Defaults to
            None.
        recompute (bool): Whether backward recomputes the hidden layer, chunk by chunk, instead of
            keeping it: one more product of N·4d² out of 33, and 4 N·d fewer floats per layer.
            Defaults to False.
    """
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        weight1, bias1 = ffn.fc1.weight.to(dtype), ffn.fc1.bias.to(dtype)
        weight2 = (gamma[:, None] * ffn.fc2.weight).to(dtype)
        bias2 = (gamma * ffn.fc2.bias).to(dtype)
        scale = None if scale is None else scale.expand(-1, x.shape[1], 1).reshape(-1, 1)
        out = _ChunkedFeedForward.apply(
            x.flatten(0, 1),
            scale,
            norm.weight,
            norm.bias,
            weight1,
            bias1,
            weight2,
            bias2,
            norm.eps,
            recompute,
        )
        return out.view_as(x)


def add_feed_forward(x: Tensor, ffn: FeedForward, norm: nn.LayerNorm, gamma: Tensor) -> None:
    """Add ``γ · FFN(LN(x))`` to x in place, for inference; see :func:`feed_forward_residual`."""
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        tokens = x.view(-1, x.shape[2])  # a view, never a copy: it is written to
        weight1, bias1 = ffn.fc1.weight.to(dtype), ffn.fc1.bias.to(dtype)
        weight2, bias2 = ffn.fc2.weight.to(dtype), ffn.fc2.bias.to(dtype)
        # Folding gamma into the weight pays only where there are more tokens than columns.
        fold = len(tokens) > len(weight1)
        if fold:
            weight2, bias2 = gamma[:, None].to(dtype) * weight2, gamma.to(dtype) * bias2
        for chunk in token_chunks(tokens, len(weight1)):
            piece = tokens[chunk]
            hidden = F.gelu(F.linear(norm(piece).to(dtype), weight1, bias1))
            if fold:
                add_product(piece, hidden, weight2.t())
                piece += bias2
            else:
                piece.addcmul_(F.linear(hidden, weight2, bias2), gamma)


class _ChunkedFeedForward(torch.autograd.Function):
    """The residual branch with a hand-written backward.

    It keeps x and, unless it recomputes, the hidden layer. Backward recomputes LayerNorm and
    GELU: both are cheap next to the products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
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
        hidden = None
        if any(ctx.needs_input_grad) and not recompute:  # a frozen layer has no backward
            hidden = x.new_empty(len(x), len(weight1), dtype=weight1.dtype)
        for chunk in token_chunks(x, len(weight1)):
            normed = F.layer_norm(x[chunk], norm_weight.shape, norm_weight, norm_bias, eps)
            kept = None if hidden is None else hidden[chunk]
            piece = torch.addmm(bias1, normed.to(weight1.dtype), weight1.t(), out=kept)
            branch = torch.addmm(bias2, F.gelu(piece), weight2.t())
            if scale is not None:
                branch = branch * scale[chunk]
            torch.add(x[chunk], branch, out=out[chunk])
        ctx.eps = eps
        ctx.save_for_backward(
            x, scale, norm_weight, norm_bias, weight1, bias1, weight2, bias2, hidden
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # By create_graph=True, or by is_grads_batched=True.
        if torch.is_grad_enabled() or is_batched(grad):
            return _plain_backward(ctx, grad)
        x, scale, norm_weight, norm_bias, weight1, bias1, weight2, bias2, hidden = ctx.saved_tensors
        dtype = weight1.dtype
        grad_x = torch.empty_like(x)
        grad_norm_weight, grad_norm_bias = _zeros(norm_weight), _zeros(norm_bias)
        grad_weight1, grad_bias1 = _zeros(weight1), _zeros(bias1)
        grad_weight2, grad_bias2 = _zeros(weight2), _zeros(bias2)
        for chunk in token_chunks(x, len(weight1)):
            normed, mean, rstd = layer_norm_statistics(x[chunk], norm_weight, norm_bias, ctx.eps)
            normed = normed.to(dtype)
            piece = torch.addmm(bias1, normed, weight1.t()) if hidden is None else hidden[chunk]
            grad_branch = grad[chunk] if scale is None else grad[chunk] * scale[chunk]
            grad_branch = grad_branch.to(dtype)
            add_product(grad_weight2, grad_branch.t(), F.gelu(piece))
            grad_bias2 += grad_branch.sum(0)
            grad_piece = gelu_backward(grad_branch @ weight2, piece)
            add_product(grad_weight1, grad_piece.t(), normed)
            grad_bias1 += grad_piece.sum(0)
            grad_normed = (grad_piece @ weight1).to(x.dtype)
            grad_chunk, of_norm_weight, of_norm_bias = layer_norm_backward(
                grad_normed, x[chunk], mean, rstd, norm_weight, norm_bias
            )
            grad_norm_weight += of_norm_weight
            grad_norm_bias += of_norm_bias
            torch.add(grad[chunk], grad_chunk, out=grad_x[chunk])
        return (
            grad_x,
            None,
            grad_norm_weight.to(norm_weight.dtype),
            grad_norm_bias.to(norm_bias.dtype),
            grad_weight1.to(dtype),
            grad_bias1.to(dtype),
            grad_weight2.to(dtype),
            grad_bias2.to(dtype),
            None,
            None,
        )


def _plain_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of backward, by operators that autograd can differentiate and batch.

    torch's ``once_differentiable`` is not enough: ``autograd.grad`` does not raise its error, but
    returns a second derivative that lacks this branch.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:8]]
        x, scale, norm_weight, norm_bias, weight1, bias1, weight2, bias2 = inputs
        normed = F.layer_norm(x, norm_weight.shape, norm_weight, norm_bias, ctx.eps)
        hidden = F.gelu(F.linear(normed.to(weight1.dtype), weight1, bias1))
        branch = F.linear(hidden, weight2, bias2)
        out = x + (branch if scale is None else branch * scale)
    wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad)


def _zeros(like: Tensor) -> Tensor:
    """Return zeros for a sum over chunks: at least float32, whatever the type of the products."""
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
