"""The feed-forward network, and the residual branch around it run over chunks of tokens.

Its hidden layer is four times as wide as the tokens and would be the largest tensor of a layer. Over
chunks of tokens only a piece of it exists at a time, small enough for the processor's cache.
"""

from typing import Any

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .precision import autocast_dtype, without_autocast

# Elements of the hidden layer that exist at a time: 4 MB of float32 stay in a CPU's cache, a GPU
# wants work for all of its cores.
CHUNK_ELEMENTS = {'cpu': 2**20}
CHUNK_ELEMENTS_OTHER = 2**26


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
    inplace: bool = False,
) -> Tensor:
    """``x + scale · γ · FFN(LN(x))`` over chunks of tokens.

    Args:
        x (Tensor): Tokens (B, N, d).
        norm (nn.LayerNorm): The LayerNorm in front.
        ffn (FeedForward): The network.
        gamma (Tensor): LayerScale (d), folded into the last linear layer.
        scale (Tensor, optional): Factor of stochastic depth, one a sample (B, 1, 1).
        recompute (bool): Whether backward computes the hidden layer again, chunk by chunk, instead
            of keeping it: one more product of N·4d² out of 33 and 4 N·d floats less a layer.
        inplace (bool): Whether the result overwrites ``x``. Only where autograd is off.
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
        rows = None if scale is None else scale.expand(-1, x.shape[1], 1).reshape(-1, 1)
        if torch.compiler.is_compiling():
            # The compiler plans memory itself, and unrolled chunks would only slow it down.
            return x + _branch(x, norm, weights, scale)
        if torch.is_grad_enabled():
            out = _ChunkedFeedForward.apply(
                x.flatten(0, 1), rows, norm.weight, norm.bias, *weights, norm.eps, recompute
            )
            return out.view_as(x)
        flat = x.flatten(0, 1)
        out = flat if inplace else torch.empty_like(flat)
        for chunk in _chunks(flat, weights[0].shape[0]):
            branch = _branch(flat[chunk], norm, weights, None if rows is None else rows[chunk])
            torch.add(flat[chunk], branch, out=out[chunk])
        return out.view_as(x)


def _branch(x: Tensor, norm: nn.LayerNorm, weights: list[Tensor], scale: Tensor | None) -> Tensor:
    weight1, bias1, weight2, bias2 = weights
    hidden = F.linear(norm(x).to(weight1.dtype), weight1, bias1)
    branch = F.linear(F.gelu(hidden), weight2, bias2)
    return branch if scale is None else branch * scale


def _chunks(tokens: Tensor, hidden_dims: int) -> list[slice]:
    elements = CHUNK_ELEMENTS.get(tokens.device.type, CHUNK_ELEMENTS_OTHER)
    length = max(64, elements // hidden_dims)
    return [slice(start, start + length) for start in range(0, tokens.shape[0], length)]


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
        for chunk in _chunks(x, len(weight1)):
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, scale, norm_weight, norm_bias, weight1, bias1, weight2, bias2, hidden = ctx.saved_tensors
        dtype, shape = weight1.dtype, list(norm_weight.shape)
        grad_x = torch.empty_like(x)
        # Sums over chunks are kept in float32, whatever the products are computed in.
        sums = [
            torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32))
            for t in (norm_weight, norm_bias, weight1, bias1, weight2, bias2)
        ]
        for chunk in _chunks(x, len(weight1)):
            normed, mean, rstd = torch.native_layer_norm(
                x[chunk], shape, norm_weight, norm_bias, ctx.eps
            )
            normed_low = normed.to(dtype)
            piece = torch.addmm(bias1, normed_low, weight1.t()) if hidden is None else hidden[chunk]
            grad_branch = grad[chunk] if scale is None else grad[chunk] * scale[chunk]
            grad_branch = grad_branch.to(dtype)
            _add_product(sums[4], grad_branch.t(), F.gelu(piece))
            sums[5] += grad_branch.sum(0)
            grad_piece = torch.ops.aten.gelu_backward(grad_branch @ weight2, piece)
            _add_product(sums[2], grad_piece.t(), normed_low)
            sums[3] += grad_piece.sum(0)
            grad_chunk, grad_norm_weight, grad_norm_bias = torch.ops.aten.native_layer_norm_backward(
                (grad_piece @ weight1).to(x.dtype),
                x[chunk],
                shape,
                mean,
                rstd,
                norm_weight,
                norm_bias,
                [True, True, True],
            )
            sums[0] += grad_norm_weight
            sums[1] += grad_norm_bias
            torch.add(grad[chunk], grad_chunk, out=grad_x[chunk])
        inputs = (norm_weight, norm_bias, weight1, bias1, weight2, bias2)
        grads = [total.to(t.dtype) for total, t in zip(sums, inputs, strict=True)]
        return grad_x, None, *grads, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
