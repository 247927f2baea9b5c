"""Tokens (B, N, d) and maps (B, d, H, W): the same numbers in memory when a map is channels-last.

So going from one to the other costs nothing in the forward pass. In the backward pass, a gradient
has whatever layout the kernel that computed it prefers, and in the wrong layout the kernels that
use it take slow paths. The two functions here pass every gradient on in the layout of the side that
it enters.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .operators import is_batched


def tokens_to_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """View tokens (B, N, d) as a channels-last map (B, d, H, W).

    Args:
        tokens (Tensor): The tokens.
        grid (tuple[int, int]): Height and width of their grid.
    """
    if torch.is_grad_enabled() and tokens.requires_grad:
        return _TokensToMap.apply(tokens, grid)
    return _as_map(tokens, grid)


def map_to_tokens(feature_map: Tensor) -> Tensor:
    """Turn a map (B, d, H, W) of any layout into contiguous tokens (B, N, d)."""
    if torch.is_grad_enabled() and feature_map.requires_grad:
        return _MapToTokens.apply(feature_map)
    return _as_tokens(feature_map)


def _as_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    # From one dimension, so that a batch of one, whose first stride means nothing, gets that of a
    # channels-last map as well: torch chooses kernels by it. Not unflatten, and not flatten below:
    # is_grads_batched=True does not know them.
    batch, _, dims = tokens.shape
    return tokens.reshape(-1).view(batch, *grid, dims).permute(0, 3, 1, 2)


def _as_tokens(feature_map: Tensor) -> Tensor:
    batch, dims, height, width = feature_map.shape
    return feature_map.reshape(batch, dims, height * width).transpose(1, 2).contiguous()


class _TokensToMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        return _as_map(tokens, grid)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return _as_tokens(grad), None


class _MapToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, feature_map: Tensor) -> Tensor:
        ctx.grid = tuple(feature_map.shape[2:])  # type: ignore[attr-defined]
        ctx.channels_last = feature_map.is_contiguous(  # type: ignore[attr-defined]
            memory_format=torch.channels_last
        )
        return _as_tokens(feature_map)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        grad = _as_map(grad, ctx.grid)  # type: ignore[attr-defined]
        # A gradient that stands for many, by is_grads_batched=True, knows one layout only.
        if ctx.channels_last and not is_batched(grad):  # type: ignore[attr-defined]
            return grad.contiguous(memory_format=torch.channels_last)
        return grad.contiguous()
