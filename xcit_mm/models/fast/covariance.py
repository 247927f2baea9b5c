"""Cross-covariance attention without queries, keys or values: the covariance form.

XCA sees the tokens X only through their second-order statistics. With a column of ones that carries
the biases, ``X̄ = [X, 1]``, ``S = X̄ᵀ X̄``, and ``W̄q, W̄k, W̄v`` the projection weights with their
biases as the last column,

    Qᵀ K = W̄q S W̄kᵀ,   |q_i|² = (W̄q S W̄qᵀ)_ii,   |k_j|² = (W̄k S W̄kᵀ)_jj,

and the output is one linear map of the tokens. That is two products of N·d² instead of 4 + 2/h, and
no queries, keys or values are ever stored. ``S`` adds up over chunks of tokens, tiles of an image
and machines.

Any token can serve as the origin: replacing ``X`` by ``X - r`` and ``b`` by ``W r + b`` gives the
same result, and the same gradients with r held fixed. We take the first token, so that tokens that
hardly differ give small sums, not differences of large ones.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import XCA
from .chunks import batch_chunks
from .operators import is_compiling
from .precision import autocast_dtype, is_half, sums_halves_in_float32, without_autocast

# The norm below which a channel counts as zero, as in F.normalize; squared where squares are
# compared.
EPS = 1e-12
# Columns after the tokens, the first of which is ones: products are fastest if their sizes are
# multiples of 8.
PADDING = 8


def shift_origin(xca: XCA, tokens: Tensor, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Make a token the origin.

    Args:
        xca (XCA): The attention.
        tokens (Tensor): Normalized tokens (B, N, d).
        origin (Tensor, optional): That token of each sample, (B, 1, d), without gradient. Defaults
            to None, the first.

    Returns:
        tuple[Tensor, Tensor]: The shifted tokens, and the biases (B, 3 d) that go with them.
    """
    origin = tokens[:, :1].detach() if origin is None else origin
    with without_autocast(tokens):
        return tokens - origin, origin_bias(xca, origin)


def origin_bias(xca: XCA, origin: Tensor) -> Tensor:
    """Return the biases (B, 3 d) that go with an origin (B, 1, d)."""
    with without_autocast(origin):
        # Not by the module: an export keeps in float32 what the backbone itself computes.
        return F.linear(origin[:, 0].to(xca.qkv.weight.dtype), xca.qkv.weight, xca.qkv.bias)


def statistics(tokens: Tensor) -> Tensor:
    """Return ``S = X̄ᵀ X̄`` (B, d + 1, d + 1) of tokens X (B, N, d) and a column of ones."""
    dtype = product_dtype(tokens)
    with without_autocast(tokens):
        tokens = tokens.to(dtype)
        # Of the same rounded tokens, or S need not be positive.
        first_moment = tokens.sum(1, dtype=torch.promote_types(dtype, torch.float32))
        is_trained = torch.is_grad_enabled() and tokens.requires_grad
        second = SecondMoment.apply(tokens) if is_trained else second_moment(tokens)
        return assemble(second, first_moment, tokens.shape[1])


def augmented_statistics(tokens: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``X̄`` and ``S = X̄ᵀ X̄`` of tokens with another origin, from one product.

    Args:
        tokens (Tensor): Normalized tokens (B, N, d).
        origin (Tensor): The origin of each sample, (B, 1, d), without gradient.

    Returns:
        tuple[Tensor, Tensor]: ``X̄ = [X - r, 1, 0, ...]``, (B, N, d + PADDING), and S
        (B, d + 1, d + 1).
    """
    dtype, dims = product_dtype(tokens), tokens.shape[2]
    with without_autocast(tokens):
        if is_compiling():  # which fuses these steps
            X = F.pad(tokens - origin, (0, 1), value=1.0)
            X = F.pad(X, (0, PADDING - 1)).to(dtype)
            S = SecondMoment.apply(X)
        elif torch.is_grad_enabled() and tokens.requires_grad:
            X = _Augment.apply(tokens, origin, dtype)
            S = SecondMoment.apply(X)
        else:
            X = _augment(tokens, origin, dtype)
            S = second_moment(X)
        return X, S[:, : dims + 1, : dims + 1]


def augmented_map(weight: Tensor, bias: Tensor, X: Tensor) -> Tensor:
    """Return the matrix by which ``X̄`` is multiplied, (B, d + PADDING, d), from a linear map."""
    zeros = weight.new_zeros(*weight.shape[:2], PADDING - 1)
    return torch.cat([weight, bias[..., None], zeros], dim=2).mT.to(X.dtype)


def _augment(tokens: Tensor, origin: Tensor, dtype: torch.dtype) -> Tensor:
    batch, num_tokens, dims = tokens.shape
    X = tokens.new_empty(batch, num_tokens, dims + PADDING, dtype=dtype)
    torch.sub(tokens, origin, out=X[..., :dims])
    X[..., dims:] = torch.eye(1, PADDING, dtype=dtype, device=X.device)[0]
    return X


class _Augment(torch.autograd.Function):
    """Shifts, rounds and pads tokens in one step."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, origin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = tokens.dtype
        return _augment(tokens, origin, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[..., :-PADDING].to(ctx.dtype), None, None


class StatisticsSum:
    """``S`` of LN(x) with the first token as origin, summed over pieces of x, for inference.

    The normalized tokens are never stored.

    Args:
        xca (XCA): The attention.
        norm (nn.LayerNorm): The preceding LayerNorm.
        dtype (torch.dtype, optional): Of the sums. Defaults to None: that of the products, at
            least float32.
    """

    origin: Tensor
    second: Tensor
    first: Tensor

    def __init__(self, xca: XCA, norm: nn.LayerNorm, dtype: torch.dtype | None = None) -> None:
        self.xca = xca
        self.norm = norm
        self.dtype = dtype
        self.count = 0

    def add(self, x: Tensor) -> 'StatisticsSum':
        """Add tokens x (B, n, d), the first of which serves as the origin, and return this sum."""
        dtype = product_dtype(x)
        with without_autocast(x):
            sum_dtype = torch.promote_types(dtype, torch.float32)
            if self.count == 0:
                batch, _, dims = x.shape
                self.origin = self.norm(x[:, :1])
                self.second = x.new_zeros(batch, dims, dims, dtype=self.dtype or sum_dtype)
                self.first = x.new_zeros(batch, dims, dtype=self.dtype or sum_dtype)
            for samples, chunk in batch_chunks(x):
                normed = self.norm(x[samples, chunk]).sub_(self.origin[samples]).to(dtype)
                self.first[samples].add_(normed.sum(1, dtype=sum_dtype))
                add_second_moment(self.second[samples], normed)
        self.count += x.shape[1]
        return self

    def result(self) -> tuple[Tensor, Tensor]:
        """Return ``S`` (B, d + 1, d + 1) and the biases (B, 3 d) that go with the origin."""
        with without_autocast(self.origin):
            S = assemble(self.second, self.first, self.count)
            return S, origin_bias(self.xca, self.origin)

    def linear_map(self) -> tuple[Tensor, Tensor]:
        """Return the :func:`linear_map` (B, d, d), (B, d) of tokens with their own origin."""
        attention = attention_from_statistics(self.xca, *self.result())
        weight, bias = linear_map(self.xca, attention, self.xca.qkv.bias)
        dtype = self.xca.proj.weight.dtype
        return weight.to(dtype), bias.to(dtype)

    def state(self) -> dict[str, Tensor]:
        """Return what :meth:`load` needs to continue."""
        count = torch.tensor(self.count)
        return dict(origin=self.origin, second=self.second, first=self.first, count=count)

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue with what :meth:`state` returned."""
        self.count = int(state['count'])
        for name in ('origin', 'second', 'first'):
            setattr(self, name, state[name].to(self.norm.weight.device))


def product_dtype(tokens: Tensor) -> torch.dtype:
    """Return the type of the factors of ``XᵀX``.

    The sum is at least float32: N terms overflow float16.

    They are in half precision if autocast or the tokens themselves ask for it, and the device can
    sum such products in float32.
    """
    dtype = autocast_dtype(tokens) or tokens.dtype
    if is_half(dtype) and sums_halves_in_float32(tokens.device):
        return dtype
    return torch.promote_types(tokens.dtype, torch.float32)


def second_moment(tokens: Tensor) -> Tensor:
    """Return ``XᵀX`` (B, d, d) of tokens (B, N, d) of the type :func:`product_dtype`."""
    if is_half(tokens.dtype):
        return torch.bmm(tokens.mT, tokens, out_dtype=torch.float32)
    return tokens.mT @ tokens


def add_second_moment(total: Tensor, tokens: Tensor) -> None:
    """Add ``XᵀX`` to a total; see :func:`second_moment`."""
    if tokens.dtype == total.dtype:
        total.baddbmm_(tokens.mT, tokens)
    else:
        total += second_moment(tokens)


class SecondMoment(torch.autograd.Function):
    """``XᵀX``. Backward is one product with the symmetric part of the gradient, not two."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        return second_moment(tokens)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (tokens,) = ctx.saved_tensors  # type: ignore[attr-defined]
        symmetric = grad + grad.mT
        if not is_half(tokens.dtype):
            return tokens @ symmetric
        # The gradient of a sum over all tokens is small: scale it, so that float16 can hold it.
        scale = symmetric.abs().amax((1, 2), keepdim=True).clamp_min(EPS)
        return ((tokens @ (symmetric / scale).to(tokens.dtype)) * scale).to(tokens.dtype)


def assemble(second_moment: Tensor, first_moment: Tensor, count: int) -> Tensor:
    """Return ``S`` from ``XᵀX`` (B, d, d), the sum of the tokens (B, d) and their number."""
    column = first_moment[..., None]
    corner = column.new_full((column.shape[0], 1, 1), count)
    upper = torch.cat([second_moment, column], dim=2)
    return torch.cat([upper, torch.cat([column.mT, corner], dim=2)], dim=1)


def attention_from_statistics(xca: XCA, S: Tensor, qkv_bias: Tensor) -> Tensor:
    """Return the attention map A (B, h, d/h, d/h) from the statistics of the tokens.

    Args:
        xca (XCA): The attention.
        S (Tensor): What :func:`statistics` returned, (B, d + 1, d + 1).
        qkv_bias (Tensor): The biases that go with it, (B, 3 d).
    """
    with without_autocast(S):
        dims, num_heads = xca.embed_dims, xca.num_heads
        to_qk = _with_bias(xca.qkv.weight.to(S.dtype), qkv_bias)[:, : 2 * dims]
        to_qk_S = to_qk @ S
        squares = (to_qk_S * to_qk).sum(-1)
        squares = squares.unflatten(1, (2, num_heads, -1)).transpose(0, 1)
        queries_S = to_qk_S[:, :dims].unflatten(1, (num_heads, -1))
        to_keys = to_qk[:, dims:].unflatten(1, (num_heads, -1))
        return scaled_softmax(queries_S @ to_keys.mT, squares, xca.temperature)


def query_key_norms(xca: XCA, S: Tensor, qkv_bias: Tensor) -> Tensor:
    """Return ``|q_i|`` and ``|k_j|`` over the tokens, (B, 2 d), from their statistics."""
    to_qk = _with_bias(xca.qkv.weight.to(S.dtype), qkv_bias)[:, : 2 * xca.embed_dims]
    return (to_qk @ S * to_qk).sum(-1).clamp_min(EPS**2).sqrt()


def scaled_softmax(products: Tensor, squares: Tensor, temperature: Tensor) -> Tensor:
    """Return the softmax of the cosines between queries and keys, times the temperature.

    Args:
        products (Tensor): ``Qᵀ K`` (B, h, d/h, d/h).
        squares (Tensor): ``|q_i|²`` and ``|k_j|²``, (2, B, h, d/h).
        temperature (Tensor): 1/τ, one per head, (h, 1, 1).
    """
    query_scale, key_scale = squares.clamp_min(EPS**2).rsqrt().unbind()
    key_scale = key_scale.unsqueeze(-2) * temperature.to(products.dtype)
    return (products * query_scale.unsqueeze(-1) * key_scale).softmax(-1)


def linear_map(
    xca: XCA, attention: Tensor, qkv_bias: Tensor | None, gamma: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return values, attention, projection and LayerScale as one linear map of the tokens.

    Args:
        xca (XCA): The attention.
        attention (Tensor): The map A, (B, h, d/h, d/h).
        qkv_bias (Tensor, optional): Biases of the projection to queries, keys and values: (3 d), or
            one set per sample, (B, 3 d).
        gamma (Tensor, optional): LayerScale (d). Defaults to None, not a part of the map.

    Returns:
        tuple[Tensor, Tensor]: Weight (B, d, d) and bias (B, d).
    """
    with without_autocast(attention):
        dtype = attention.dtype
        to_values = _with_bias(xca.qkv.weight.to(dtype), qkv_bias).chunk(3, dim=1)[2]
        proj_weight: Tensor = xca.proj.weight
        proj_bias: Tensor = xca.proj.bias
        if gamma is not None:
            proj_weight, proj_bias = gamma[:, None] * proj_weight, gamma * proj_bias
        weight = attend_then_project(attention, proj_weight.to(dtype)) @ to_values
        return weight[..., :-1], weight[..., -1] + proj_bias.to(dtype)


def attend_then_project(attention: Tensor, proj_weight: Tensor) -> Tensor:
    """Return ``Wp · blockdiag(A)``: (B, d, d)."""
    per_head = proj_weight.unflatten(1, (attention.shape[1], -1)).transpose(0, 1)
    return (per_head @ attention).transpose(1, 2).flatten(2)


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias, or zeros, to a weight as its last column: (1 or B, rows, d + 1)."""
    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    bias = bias.to(weight.dtype).view(-1, weight.shape[0], 1)
    return torch.cat([weight.expand(bias.shape[0], -1, -1), bias], dim=2)
