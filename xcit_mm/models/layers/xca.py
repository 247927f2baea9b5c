"""Cross-covariance attention (section 3.2 of the paper)."""

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F


class XCA(BaseModule):
    """Cross-covariance attention: attention over channels instead of tokens.

    Given queries, keys and values ``Q, K, V``, one row per token, and ``Q̂, K̂``, which are ``Q, K``
    with columns scaled to unit length, each head computes

        XCA(Q, K, V) = V · A(K, Q),    A(K, Q) = softmax(K̂ᵀ Q̂ / τ).

    The code has the tokens in the last dimension, so it computes ``A · v``, with the softmax over
    the last dimension. ``temperature`` is 1/τ, one learnt number per head.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads h.
        qkv_bias (bool): Whether queries, keys and values have biases. Defaults to True.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the channels of tokens (B, N, d)."""
        queries, keys, values = self.project(x)
        attended = self.attention_map(queries, keys) @ values  # (B, h, d/h, N)
        return self.proj(attended.permute(0, 3, 1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens (B, N, d), each (B, h, d/h, N)."""
        queries, keys, values = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).unbind(2)
        return queries.permute(0, 2, 3, 1), keys.permute(0, 2, 3, 1), values.permute(0, 2, 3, 1)

    def attention_map(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention A between channels, (B, h, d/h, d/h)."""
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
        return (queries @ keys.mT * self.temperature).softmax(dim=-1)
