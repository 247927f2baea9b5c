"""Runs class attention without keys and values of individual tokens.

Only the class token has a query. For a head with query q and tokens x_n after LayerNorm,

    q · (W_k x_n + b_k) = (W_kᵀ q) · x_n + q · b_k,
    Σ_n a_n (W_v x_n + b_v) = W_v (Σ_n a_n x_n) + b_v,

and softmax cancels q · b_k, which is the same for all tokens. With N tokens of width d and h heads
that takes 2 h N d multiply-adds instead of 2 N d², and keys and values are never stored.

The class token and the patch tokens are two tensors here, so that neither is copied to join them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layers import ClassAttention, ClassAttentionLayer
from .residual import add_branch, path_scale


def gather_class_token(
    layers: Sequence[ClassAttentionLayer], class_token: Tensor, patches: Tensor
) -> Tensor:
    """The class token (B, d) after the class-attention layers.

    Args:
        layers (Sequence[ClassAttentionLayer]): The layers, at least one.
        class_token (Tensor): The class token before them, (B, 1, d).
        patches (Tensor): The patch tokens (B, N, d).
    """
    for layer in layers[:-1]:
        class_token, patches = _run_layer(layer, class_token, patches)
    # Nothing reads the patch tokens after the last layer.
    return _run_layer(layers[-1], class_token, patches, is_last=True)[0][:, 0]


def _run_layer(
    layer: ClassAttentionLayer, class_token: Tensor, patches: Tensor, is_last: bool = False
) -> tuple[Tensor, Tensor]:
    normed_token, normed = layer.norm1(class_token), layer.norm1(patches)
    scale = path_scale(layer, patches)
    attended = _attend(layer.attn, normed_token, normed)
    class_token = layer.norm2(add_branch(class_token, layer.gamma1 * attended, scale))
    if not is_last:
        patches = add_branch(patches, layer.gamma1 * normed, scale)
        patches = layer.norm2(patches) if layer.tokens_norm else patches
    scale = path_scale(layer, patches)
    class_token = add_branch(class_token, layer.gamma2 * layer.ffn(class_token), scale)
    if not is_last:
        patches = patches * 2 if scale is None else patches * (1 + scale)
    return class_token, patches


def _attend(attention: ClassAttention, class_token: Tensor, patches: Tensor) -> Tensor:
    """What :class:`ClassAttention` returns, from the class token and the patch tokens."""
    to_queries, to_keys, to_values = attention.qkv.weight.unflatten(0, (3, attention.num_heads, -1))
    biases = (None,) * 3
    if attention.qkv.bias is not None:
        biases = attention.qkv.bias.unflatten(0, (3, attention.num_heads, 1, -1))
    query = _per_head(class_token[:, None], to_queries.mT, biases[0])  # (B, h, 1, d/h)
    probe = (query * query.shape[-1] ** -0.5 @ to_keys).squeeze(2)  # (B, h, d)
    scores = torch.cat([probe @ class_token.mT, probe @ patches.mT], dim=2)
    to_class, to_patches = scores.softmax(dim=-1).split([1, patches.shape[1]], dim=2)
    mean = to_class * class_token + to_patches.to(patches.dtype) @ patches  # (B, h, d)
    attended = _per_head(mean[:, :, None], to_values.mT, biases[2])
    return attention.proj(attended.transpose(1, 2).flatten(2))


def _per_head(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W + b`` of (B, h or 1, 1, d) with a weight per head, (h, d, d/h)."""
    product = x @ weight
    return product if bias is None else product + bias
