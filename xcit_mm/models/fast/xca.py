"""Runs cross-covariance attention, in its token form or its covariance form."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import XCA
from .chunks import batch_chunks
from .covariance import (
    StatisticsSum,
    attention_from_statistics,
    linear_map,
    scaled_softmax,
    shift_origin,
    statistics,
)
from .precision import (
    at_least_float32,
    autocast_dtype,
    is_half,
    sums_halves_in_float32,
    without_autocast,
)

FORMS = ('auto', 'token', 'covariance')

# What the steps between the products of the covariance form cost, in multiply-adds per element of a
# d x d matrix, as measured on a CPU. A GPU launches about twenty more kernels per layer. We assume,
# but have not measured, 5 µs for each at 10¹³ multiply-adds per second.
STEPS_COST = 550
LAUNCH_COST = 1e9


def choose_form(form: str, xca: XCA, x: Tensor) -> str:
    """Return ``token`` or ``covariance``; for ``auto`` the one that is cheaper for these tokens.

    That is the one with fewer multiply-adds. For N tokens of width d and h heads they are

        token form:       (4 + 2/h) N d²
        covariance form:  2 N d² + (3 + 2/h) d³ + the steps between these products.

    Training takes three times as many, except that the 2 N d² become 5 N d².

    Args:
        form (str): One of :data:`FORMS`.
        xca (XCA): The attention.
        x (Tensor): Tokens (B, N, d).
    """
    if form != 'auto':
        return form
    device = x.device
    is_half_on_gpu = device.type != 'cpu' and is_half(autocast_dtype(x) or x.dtype)
    if is_half_on_gpu and not sums_halves_in_float32(device):
        return 'token'  # the statistics would be float32 products, which are slow there
    (batch, num_tokens, dims), per_head = x.shape, 2 / xca.num_heads
    saving, cost = (2 + per_head) * num_tokens, (3 + per_head) * dims + STEPS_COST
    if torch.is_grad_enabled():
        saving, cost = (7 + 3 * per_head) * num_tokens, 3 * cost
    launches = 0 if device.type == 'cpu' else LAUNCH_COST
    return 'covariance' if batch * dims**2 * (saving - cost) > launches else 'token'


def scaled_xca(tokens: Tensor, xca: XCA, gamma: Tensor | None, form: str) -> Tensor:
    """Return ``γ · XCA(x)``.

    Args:
        tokens (Tensor): Normalized tokens (B, N, d).
        xca (XCA): The attention.
        gamma (Tensor, optional): LayerScale (d), folded into the projection; None leaves it out.
        form (str): ``token`` or ``covariance``.
    """
    if form == 'covariance':
        return covariance_xca(tokens, xca, gamma)
    if gamma is None:
        return xca.proj(_attend(tokens, xca))
    weight, bias = gamma[:, None] * xca.proj.weight, gamma * xca.proj.bias
    return F.linear(_attend(tokens, xca), weight, bias)


def covariance_xca(
    tokens: Tensor,
    xca: XCA,
    gamma: Tensor | None,
    origin: Tensor | None = None,
    sum_over_parts: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return ``γ · XCA(x)`` in covariance form.

    Args:
        tokens (Tensor): Normalized tokens (B, N, d), all or a part of them.
        xca (XCA): The attention.
        gamma (Tensor, optional): LayerScale (d), folded into the projection; None leaves it out.
        origin (Tensor, optional): See :func:`shift_origin`; the same for all parts. Defaults to
            None.
        sum_over_parts (callable, optional): Adds up the statistics of all parts. Defaults to None:
            there are no others.
    """
    tokens, qkv_bias = shift_origin(xca, tokens, origin)
    S = statistics(tokens)
    S = S if sum_over_parts is None else sum_over_parts(S)
    attention = attention_from_statistics(xca, S, qkv_bias)
    weight, bias = linear_map(xca, attention, qkv_bias, gamma)
    return torch.baddbmm(bias[:, None].to(tokens.dtype), tokens, weight.mT.to(tokens.dtype))


def _attend(tokens: Tensor, xca: XCA) -> Tensor:
    """Return the attended values (B, N, d) of tokens (B, N, d).

    Instead of queries and keys, their products are scaled: these are fewer numbers. They are at
    least float32, except in half precision on a GPU. There, half-precision products are many times
    as fast, and only those of unit vectors are sure not to overflow.
    """
    qkv = xca.qkv(tokens).unflatten(2, (3, xca.num_heads, -1)).unbind(2)
    # A copy of each here, (B, h, N, d/h), saves the products below copies of their own. Backward
    # joins the three gradients in one step.
    queries, keys, values = (each.transpose(1, 2).contiguous() for each in qkv)
    if is_half(values.dtype) and values.device.type != 'cpu':
        attention = xca.attention_map(queries.mT, keys.mT)
    else:
        with without_autocast(tokens):
            queries, keys = at_least_float32(queries), at_least_float32(keys)
            squares = torch.stack([queries.square().sum(2), keys.square().sum(2)])
            attention = scaled_softmax(queries.mT @ keys, squares, xca.temperature)
    return (values @ attention.mT.to(values.dtype)).transpose(1, 2).flatten(2)


def add_xca(x: Tensor, xca: XCA, norm: nn.LayerNorm, gamma: Tensor, form: str) -> None:
    """Add ``γ · XCA(LN(x))`` to x in place, for inference.

    The covariance form computes the normalized tokens twice, chunk by chunk, and never stores them.

    Args:
        x (Tensor): Tokens (B, N, d).
        xca (XCA): The attention.
        norm (nn.LayerNorm): The preceding LayerNorm.
        gamma (Tensor): LayerScale (d).
        form (str): ``token`` or ``covariance``.
    """
    if form == 'token':
        x.addcmul_(xca.proj(_attend(norm(x), xca)), gamma)
        return
    weight, bias = StatisticsSum(xca, norm).add(x).linear_map()
    add_linear_map(x, norm, weight, bias, gamma)


def add_linear_map(
    x: Tensor, norm: nn.LayerNorm, weight: Tensor, bias: Tensor, gamma: Tensor
) -> None:
    """Add ``γ · (LN(x) Wᵀ + b)`` to x in place, chunk by chunk.

    Args:
        x (Tensor): Tokens (B, N, d).
        norm (nn.LayerNorm): The LayerNorm.
        weight (Tensor): (B, d, d).
        bias (Tensor): (B, d).
        gamma (Tensor): LayerScale (d).
    """
    dtype = autocast_dtype(x) or x.dtype
    with without_autocast(x):
        weight, bias = weight.mT.to(dtype), bias[:, None].to(dtype)
        for samples, chunk in batch_chunks(x):
            tokens = x[samples, chunk]
            normed = norm(tokens).to(dtype)
            tokens.addcmul_(torch.baddbmm(bias[samples], normed, weight[samples]), gamma)
