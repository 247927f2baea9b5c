"""Runs cross-covariance attention, in its token form or its covariance form."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import XCA
from .chunks import add_product, chunks
from .covariance import (
    assemble,
    attention_from_statistics,
    linear_map,
    scaled_softmax,
    shift_origin,
    statistics,
)
from .precision import at_least_float32, autocast_dtype, without_autocast

FORMS = ('auto', 'token', 'covariance')


def choose_form(form: str, xca: XCA, num_tokens: int) -> str:
    """``token`` or ``covariance``; for ``auto`` the one that is cheaper for this many tokens.

    Args:
        form (str): One of :data:`FORMS`.
        xca (XCA): The attention.
        num_tokens (int): Number of tokens per sample.
    """
    if form != 'auto':
        return form
    # In units of d² products: N (4 + 2/h) against 2 N plus a cost that depends on d alone. The
    # constants of the latter were measured; backward makes many small products.
    per_token_saving = 2 + 2 / xca.num_heads
    fixed_cost = 6.0 if torch.is_grad_enabled() else 2.5
    is_cheaper = per_token_saving * num_tokens > fixed_cost * xca.embed_dims
    return 'covariance' if is_cheaper else 'token'


def scaled_xca(xca: XCA, tokens: Tensor, gamma: Tensor, form: str) -> Tensor:
    """``γ · XCA(x)`` with LayerScale folded into the projection.

    Args:
        xca (XCA): The attention.
        tokens (Tensor): Normalised tokens (B, N, d).
        gamma (Tensor): LayerScale (d).
        form (str): ``token`` or ``covariance``.
    """
    weight, bias = gamma[:, None] * xca.proj.weight, gamma * xca.proj.bias
    if form == 'token':
        return F.linear(_attend(xca, tokens), weight, bias)
    tokens, qkv_bias = shift_origin(xca, tokens)
    S = statistics(tokens)
    attention = attention_from_statistics(S, xca.qkv.weight, qkv_bias, xca.temperature)
    weight, bias = linear_map(attention, xca.qkv.weight, qkv_bias, weight, bias)
    return torch.baddbmm(bias[:, None].to(tokens.dtype), tokens, weight.mT.to(tokens.dtype))


def _attend(xca: XCA, tokens: Tensor) -> Tensor:
    """The attended values (B, N, d) of tokens (B, N, d).

    Queries and keys are not scaled to unit length themselves: their products are, which are fewer
    numbers. These are computed in float32 at least.
    """
    qkv = xca.qkv(tokens).unflatten(2, (3, xca.num_heads, -1))
    # One copy here, (3, B, h, N, d/h), spares every product below a copy of its own.
    queries, keys, values = qkv.permute(2, 0, 3, 1, 4).contiguous()
    with without_autocast(tokens):
        queries, keys = at_least_float32(queries), at_least_float32(keys)
        squares = queries.square().sum(2), keys.square().sum(2)
        attention = scaled_softmax(queries.mT @ keys, *squares, xca.temperature)
    return (values @ attention.mT.to(values.dtype)).transpose(1, 2).flatten(2)


def add_xca(x: Tensor, xca: XCA, norm: nn.LayerNorm, gamma: Tensor, form: str) -> None:
    """``x += γ · XCA(LN(x))`` in place, for inference.

    The covariance form computes the normalised tokens twice, chunk by chunk, and never stores them.

    Args:
        x (Tensor): Tokens (B, N, d).
        xca (XCA): The attention.
        norm (nn.LayerNorm): The LayerNorm in front.
        gamma (Tensor): LayerScale (d).
        form (str): ``token`` or ``covariance``.
    """
    if form == 'token':
        x.add_(scaled_xca(xca, norm(x), gamma, form))
        return
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        S, qkv_bias = chunked_statistics(x, xca, norm)
        attention = attention_from_statistics(S, xca.qkv.weight, qkv_bias, xca.temperature)
        weights, biases = linear_map(
            attention,
            xca.qkv.weight,
            xca.qkv.bias,
            gamma[:, None] * xca.proj.weight,
            gamma * xca.proj.bias,
        )
        for sample, weight, bias in zip(x, weights, biases, strict=True):
            weight = weight.t().to(dtype)
            for chunk in chunks(sample, x.shape[2]):
                add_product(sample[chunk], norm(sample[chunk]).to(dtype), weight)
                sample[chunk] += bias


def chunked_statistics(x: Tensor, xca: XCA, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """``S`` of LN(x) with the first token as origin, and the biases that go with it.

    For inference. The normalised tokens are never stored.

    Args:
        x (Tensor): Tokens (B, N, d).
        xca (XCA): The attention.
        norm (nn.LayerNorm): The LayerNorm in front.

    Returns:
        tuple[Tensor, Tensor]: (B, d + 1, d + 1) and (B, 3 d).
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    second_moment = x.new_zeros(len(x), x.shape[2], x.shape[2], dtype=dtype)
    first_moment = x.new_zeros(len(x), x.shape[2], dtype=dtype)
    origin = norm(x[:, 0])
    for i, sample in enumerate(x):
        for chunk in chunks(sample, x.shape[2]):
            normed = norm(sample[chunk]).sub_(origin[i]).to(dtype)
            second_moment[i].addmm_(normed.t(), normed)
            first_moment[i] += normed.sum(0)
    S = assemble(second_moment, first_moment, x.shape[1])
    return S, xca.qkv(origin.to(xca.qkv.weight.dtype))
