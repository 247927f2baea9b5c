"""Class attention (section 3.3 of the paper, after CaiT)."""

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from .feed_forward import FeedForward
from .xcit_layer import LAYER_NORM_EPS


class ClassAttention(BaseModule):
    """Attention of the class token over all tokens.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads.
        qkv_bias (bool): Whether queries, keys and values have biases.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """The new class token (B, 1, d) from all tokens (B, 1 + N, d)."""
        queries, keys, values = self.project(x)
        attended = self.attention_map(queries, keys) @ values  # (B, h, 1, d/h)
        return self.proj(attended.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens (B, 1 + N, d), each (B, h, 1 + N, d/h)."""
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return qkv[0], qkv[1], qkv[2]

    def attention_map(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention from the class token, which is first, to all tokens, (B, h, 1, 1 + N)."""
        query = queries[:, :, :1] * queries.shape[-1] ** -0.5
        return (query @ keys.mT).softmax(dim=-1)


class ClassAttentionLayer(BaseModule):
    """Class attention and a feed-forward network on the class token.

    The patch tokens take part in the residuals, and there is no stochastic depth, as in the
    released models.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads.
        mlp_ratio (float): Width of the hidden layer over d.
        qkv_bias (bool): Whether queries, keys and values have biases.
        layer_scale_init (float): Initial value of LayerScale.
        tokens_norm (bool): Whether the second LayerNorm is applied to all tokens, not to the
            class token alone.
    """

    def __init__(
        self,
        embed_dims: int,
        *,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        layer_scale_init: float,
        tokens_norm: bool,
    ) -> None:
        super().__init__()
        self.tokens_norm = tokens_norm
        self.norm1 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.attn = ClassAttention(embed_dims, num_heads, qkv_bias)
        self.gamma1 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm2 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.ffn = FeedForward(embed_dims, int(embed_dims * mlp_ratio))
        self.gamma2 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))

    def forward(self, x: Tensor) -> Tensor:
        """Transform the class token and the patch tokens, (B, 1 + N, d)."""
        normed = self.norm1(x)
        attended = torch.cat([self.attn(normed), normed[:, 1:]], dim=1)
        x = x + self.gamma1 * attended
        if self.tokens_norm:
            x = self.norm2(x)
        else:
            x = torch.cat([self.norm2(x[:, :1]), x[:, 1:]], dim=1)
        class_token = self.gamma2 * self.ffn(x[:, :1])
        return x + torch.cat([class_token, x[:, 1:]], dim=1)
