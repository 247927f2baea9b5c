"""The feed-forward network, and the residual branch around it run over chunks of tokens.

Its hidden layer is four times as wide as the tokens and would be the largest tensor of a layer.
Over chunks of tokens only a piece of it exists at a time, small enough for the processor's cache.
"""

from typing import Any

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .chunks import add_product, chunks
from .precision import autocast_dtype, without_autocast


class FeedForward(BaseModule):
    """Two linear layers with an exact GELU between them.

    Args:
        embed_dims (int): Width d of the tokens.
        hidden_dims (int): Width of the hidden layer.
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(tokens)))


def feed_forward_residual(
    x: Tensor,
    norm: nn.LayerNorm,
    ffn: FeedForward,
    gamma: Tensor,
    scale: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """``x + scale · γ · FFN(LN(x))``, for training.

    Args:
        x (Tensor): Tokens (B, N, d).
        norm (nn.LayerNorm): The LayerNorm in front.
        ffn (FeedForward): The network.
        gamma (Tensor): LayerScale (d), folded into the last linear layer.
        scale (Tensor, optional): Factor of stochastic depth, one a sample (B, 1, 1).
        recompute (bool): Whether backward computes the hidden layer again, chunk by chunk, instead
            of keeping it: one more product of N·4d² out of 33 and 4 N·d floats less a layer.
    """
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        weights = [
            weight.to(dtype)
            for weight in (
                ffn.fc1.weight,
                ffn.fc1.bias,
                gamma[:, None] * ffn.fc2.weight,
                gamma * ffn.fc2.bias,
            )
        ]
        if torch.compiler.is_compiling():
            # The compiler plans memory itself, and unrolled chunks would only slow it down.
            weight1, bias1, weight2, bias2 = weights
            hidden = F.linear(norm(x).to(dtype), weight1, bias1)
            branch = F.linear(F.gelu(hidden), weight2, bias2)
            return x + (branch if scale is None else branch * scale)
        rows = None if scale is None else scale.expand(-1, x.shape[1], 1).reshape(-1, 1)
        out = _ChunkedFeedForward.apply(
            x.flatten(0, 1), rows, norm.weight, norm.bias, *weights, norm.eps, recompute
        )
        return out.view_as(x)


def add_feed_forward(x: Tensor, norm: nn.LayerNorm, ffn: FeedForward, gamma: Tensor) -> None:
    """``x += γ · FFN(LN(x))`` in place, for inference; see :func:`feed_forward_residual`."""
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        tokens = x.flatten(0, 1)
        weight1, bias1 = ffn.fc1.weight.to(dtype), ffn.fc1.bias.to(dtype)
        weight2, bias2 = ffn.fc2.weight.to(dtype), ffn.fc2.bias.to(dtype)
        # Folding gamma into the weight is free only where there are more tokens than its columns.
        fold = len(tokens) > len(weight1)
        if fold:
            weight2, bias2 = gamma[:, None].to(dtype) * weight2, gamma.to(dtype) * bias2
        for chunk in chunks(tokens, len(weight1)):
            hidden = F.linear(norm(tokens[chunk]).to(dtype), weight1, bias1)
            hidden = torch.ops.aten.gelu_(hidden)
            if fold:
                add_product(tokens[chunk], hidden, weight2.t())
                tokens[chunk] += bias2
            else:
                tokens[chunk] += F.linear(hidden, weight2, bias2) * gamma


class _ChunkedFeedForward(torch.autograd.Function):
    """The residual branch with backward written out: it keeps x and, if wanted, the hidden layer.

    LayerNorm and GELU are computed again in backward; both are cheap next to the products.
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
        hidden = None if recompute else x.new_empty(len(x), len(weight1), dtype=weight1.dtype)
        for chunk in chunks(x, len(weight1)):
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
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, norm_weight, norm_bias, weight1, bias1, weight2, bias2, hidden = ctx.saved_tensors
        dtype, shape = weight1.dtype, list(norm_weight.shape)
        grad_x = torch.empty_like(x)
        # Sums over chunks are kept in float32, whatever the products are computed in.
        sums = [
            torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32))
            for t in (norm_weight, norm_bias, weight1, bias1, weight2, bias2)
        ]
        for chunk in chunks(x, len(weight1)):
            normed, mean, rstd = torch.native_layer_norm(
                x[chunk], shape, norm_weight, norm_bias, ctx.eps
            )
            normed_low = normed.to(dtype)
            piece = torch.addmm(bias1, normed_low, weight1.t()) if hidden is None else hidden[chunk]
            grad_branch = grad[chunk] if scale is None else grad[chunk] * scale[chunk]
            grad_branch = grad_branch.to(dtype)
            add_product(sums[4], grad_branch.t(), F.gelu(piece))
            sums[5] += grad_branch.sum(0)
            grad_piece = torch.ops.aten.gelu_backward(grad_branch @ weight2, piece)
            add_product(sums[2], grad_piece.t(), normed_low)
            sums[3] += grad_piece.sum(0)
            grad_chunk, grad_norm_weight, grad_norm_bias = (
                torch.ops.aten.native_layer_norm_backward(
                    (grad_piece @ weight1).to(x.dtype),
                    x[chunk],
                    shape,
                    mean,
                    rstd,
                    norm_weight,
                    norm_bias,
                    [True, True, True],
                )
            )
            sums[0] += grad_norm_weight
            sums[1] += grad_norm_bias
            torch.add(grad[chunk], grad_chunk, out=grad_x[chunk])
        inputs = (norm_weight, norm_bias, weight1, bias1, weight2, bias2)
        grads = [total.to(t.dtype) for total, t in zip(sums, inputs, strict=True)]
        return grad_x, None, *grads, None, None
