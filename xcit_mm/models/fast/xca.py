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
    augmented_map,
    augmented_statistics,
    linear_map,
    origin_bias,
    scaled_softmax,
)
from .precision import (
    at_least_float32,
    autocast_dtype,
    is_half,
    sums_halves_in_float32,
    without_autocast,
)

FORMS = ('auto', 'token', 'covariance')

# What the steps between the products of the covariance form cost on a CPU, in multiply-adds per
# element of a d x d matrix, as measured.
STEPS_COST = 550


class GPU:
    """What is assumed of a GPU, by which the forms are compared: an A100's published figures."""

    BANDWIDTH = 1.5e12  # bytes per second
    FLOAT32 = 9.75e12  # multiply-adds per second
    HALF = 156e12
    LAUNCH = 5e-6  # seconds
    # Of its cores, the part that the few small products between matrices d x d keep busy.
    SHARE = 1 / 3


# How the forms differ on a GPU with autocast, in inference and in training: bytes that the
# covariance form saves per number of the tokens and adds per element of a d x d matrix, and the
# kernels that it adds. ``python -m dev.gpu_cost --forms`` counts them; they were not measured.
GPU_COUNTS = {False: (66, 176, 3), True: (307, 648, 13)}


def choose_form(form: str, xca: XCA, x: Tensor) -> str:
    """Return ``token`` or ``covariance``; for ``auto`` the one that is cheaper for these tokens.

    For N tokens of width d and h heads, the multiply-adds are

        token form:       (4 + 2/h) N d²
        covariance form:  2 N d² + (3 + 2/h) d³ + the steps between these products.

    Training takes three times as many, except that the 2 N d² become 5 N d². On a CPU, they
    decide. On a GPU, so do the bytes that are moved and the kernels that are launched, and the d³
    are in float32, for which it is slow.

    Args:
        form (str): One of :data:`FORMS`.
        xca (XCA): The attention.
        x (Tensor): Tokens (B, N, d).
    """
    if form != 'auto':
        return form
    (batch, num_tokens, dims), per_head = x.shape, 2 / xca.num_heads
    is_training = torch.is_grad_enabled()
    saving = ((7 + 3 * per_head) if is_training else (2 + per_head)) * num_tokens
    cost = (3 + per_head) * dims * (3 if is_training else 1)
    if x.device.type == 'cpu':
        cost += STEPS_COST * (3 if is_training else 1)
        return 'covariance' if saving > cost else 'token'
    in_half = is_half(autocast_dtype(x) or x.dtype)
    if in_half and not sums_halves_in_float32(x.device):
        return 'token'  # the statistics would be float32 products, which are slow there
    saved_bytes, added_bytes, launches = GPU_COUNTS[is_training]
    matrix = batch * dims**2
    seconds = (
        (saved_bytes * batch * num_tokens * dims - added_bytes * matrix) / GPU.BANDWIDTH
        + saving * matrix / (GPU.HALF if in_half else GPU.FLOAT32)
        - cost * matrix / (GPU.FLOAT32 * GPU.SHARE)
        - launches * GPU.LAUNCH
    )
    return 'covariance' if seconds > 0 else 'token'


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
        return _token_xca(tokens, xca)
    weight, bias = gamma[:, None] * xca.proj.weight, gamma * xca.proj.bias
    return F.linear(attend_tokens(xca.qkv(tokens), xca), weight, bias)


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
            None, the first token.
        sum_over_parts (callable, optional): Adds up the statistics of all parts. Defaults to None:
            there are no others.
    """
    origin = tokens[:, :1].detach() if origin is None else origin
    X, S = augmented_statistics(tokens, origin)
    S = S if sum_over_parts is None else sum_over_parts(S)
    qkv_bias = origin_bias(xca, origin)
    attention = attention_from_statistics(xca, S, qkv_bias)
    X = X.to(autocast_dtype(tokens) or tokens.dtype)
    return X @ augmented_map(*linear_map(xca, attention, qkv_bias, gamma), X)


def _token_xca(tokens: Tensor, xca: XCA) -> Tensor:
    """Return ``XCA(x)`` in token form."""
    return xca.proj(attend_tokens(xca.qkv(tokens), xca))


def attend_tokens(qkv: Tensor, xca: XCA) -> Tensor:
    """Return the attended values (B, N, d) from queries, keys and values (B, N, 3 d).

    On a CPU, the products of queries and keys are scaled instead of queries and keys: these are
    fewer numbers. They are at least float32, or they would overflow.
    """
    qkv = qkv.unflatten(2, (3, xca.num_heads, -1))
    if qkv.device.type != 'cpu':
        queries, keys, values = (each.permute(0, 2, 3, 1) for each in qkv.unbind(2))
        return (xca.attention_map(queries, keys) @ values).permute(0, 3, 1, 2).flatten(2)
    qkv = qkv.permute(2, 0, 3, 1, 4)
    with without_autocast(qkv):
        # Copies, (B, h, N, d/h), save the products below copies of their own.
        if torch.is_grad_enabled():
            # One by one, so that backward joins the three gradients in one step.
            queries, keys, values = (each.contiguous() for each in qkv.unbind())
            queries, keys = at_least_float32(queries), at_least_float32(keys)
            squares = torch.stack([queries.square().sum(2), keys.square().sum(2)])
        else:
            qkv = qkv.contiguous()
            queries_keys, values = at_least_float32(qkv[:2]), qkv[2]
            (queries, keys), squares = queries_keys.unbind(), queries_keys.square().sum(3)
        attention = scaled_softmax(queries.mT @ keys, squares, xca.temperature)
    return (values @ attention.mT.to(values.dtype)).transpose(1, 2).flatten(2)


def add_xca(x: Tensor, xca: XCA, norm: nn.LayerNorm, gamma: Tensor, form: str) -> None:
    """Add ``γ · XCA(LN(x))`` to x in place, for inference.

    The covariance form of many tokens computes the normalized tokens twice, chunk by chunk, and
    never stores them.

    Args:
        x (Tensor): Tokens (B, N, d).
        xca (XCA): The attention.
        norm (nn.LayerNorm): The preceding LayerNorm.
        gamma (Tensor): LayerScale (d).
        form (str): ``token`` or ``covariance``.
    """
    if form == 'token':
        x.addcmul_(_token_xca(norm(x), xca), gamma)
        return
    if x.device.type != 'cpu' and len(batch_chunks(x)) == 1:
        x.addcmul_(covariance_xca(norm(x), xca, None), gamma)
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
