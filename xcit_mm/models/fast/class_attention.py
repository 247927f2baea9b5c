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
from torch.nn import functional as F

from ..layers import ClassAttention, ClassAttentionLayer


def gather_class_token(
    layers: Sequence[ClassAttentionLayer], class_token: Tensor, patches: Tensor
) -> Tensor:
    """Return the class token (B, d) after the class-attention layers.

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
    attended = _attend(layer.attn, normed_token, normed)
    class_token = layer.norm2(class_token + layer.gamma1 * attended)
    if not is_last:
        patches = patches + layer.gamma1 * normed
        # The second residual adds the patch tokens to themselves.
        patches = 2 * (layer.norm2(patches) if layer.tokens_norm else patches)
    return class_token + layer.gamma2 * layer.ffn(class_token), patches


def _attend(attention: ClassAttention, class_token: Tensor, patches: Tensor) -> Tensor:
    """Run :class:`ClassAttention` on the class token and the patch tokens."""
    num_heads, num_patches = attention.num_heads, patches.shape[1]
    to_queries, to_keys, to_values = attention.qkv.weight.chunk(3)
    query_bias, _, value_bias = _thirds(attention.qkv.bias)
    query = F.linear(class_token[:, 0], to_queries, query_bias).unflatten(1, (num_heads, -1))
    query = query * query.shape[2] ** -0.5
    # The products with the weights of a head are batches over heads, (h, B, ...).
    probe = torch.bmm(query.transpose(0, 1), to_keys.unflatten(0, (num_heads, -1)))
    probe = probe.transpose(0, 1)  # (B, h, d)
    scores = torch.cat([probe @ class_token.mT, probe @ patches.mT], dim=2)
    to_class, to_patches = scores.softmax(dim=-1).to(patches.dtype).split([1, num_patches], dim=2)
    mean = to_class * class_token + to_patches @ patches  # (B, h, d)
    attended = torch.bmm(mean.transpose(0, 1), to_values.unflatten(0, (num_heads, -1)).mT)
    attended = attended.transpose(0, 1).flatten(1)  # (B, d)
    attended = attended if value_bias is None else attended + value_bias
    return attention.proj(attended)[:, None]


def _thirds(bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the biases of queries, keys and values."""
    return (None,) * 3 if bias is None else bias.chunk(3)
