"""The XCiT layer, and the class-attention layer of the classifier."""

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from .feed_forward import FeedForward, add_feed_forward, feed_forward_residual
from .lpi import LPI
from .recompute import recomputed
from .xca import XCA

LAYER_NORM_EPS = 1e-6


class XCiTLayer(BaseModule):
    """Cross-covariance attention, local patch interaction and feed-forward, each a residual branch.

    The order of the branches and the numbers in the names are those of the released weights.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads of the attention.
        mlp_ratio (float): Width of the hidden layer over d.
        qkv_bias (bool): Whether queries, keys and values have biases.
        drop_path_rate (float): Stochastic depth.
        layer_scale_init (float): Initial value of LayerScale.
        norm_cfg (dict): Config of the BatchNorm layers.
        attention (str): Form of the attention, see :class:`XCA`.
        with_cp (bool): Whether backward computes everything again from the layer's input and that
            of its feed-forward. Includes ``recompute_ffn``.
        recompute_ffn (bool): See :func:`feed_forward_residual`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        drop_path_rate: float,
        layer_scale_init: float,
        norm_cfg: dict,
        attention: str,
        with_cp: bool,
        recompute_ffn: bool,
    ) -> None:
        super().__init__()
        self.layer_scale_init = layer_scale_init
        self.with_cp = with_cp
        self.recompute_ffn = recompute_ffn or with_cp
        self.norm1 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.xca = XCA(embed_dims, num_heads, qkv_bias, attention)
        self.gamma1 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm3 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.lpi = LPI(embed_dims, norm_cfg)
        self.gamma3 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm2 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.ffn = FeedForward(embed_dims, int(embed_dims * mlp_ratio))
        self.gamma2 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, grid: tuple[int, int], inplace: bool = False) -> Tensor:
        """Transform tokens (B, N, d).

        Args:
            x (Tensor): The tokens.
            grid (tuple[int, int]): Height and width of their grid.
            inplace (bool): Whether the result may overwrite ``x``. Only where autograd is off.
        """
        if torch.is_grad_enabled() or self.training or torch.compiler.is_compiling():
            if self.with_cp:
                x = recomputed(self, self._mix, x, grid, random=True)
            else:
                x = self._mix(x, grid)
            return feed_forward_residual(
                x, self.norm2, self.ffn, self.gamma2, self._path_scale(x), self.recompute_ffn
            )
        x = x if inplace else x.clone()
        self.xca.add_to(x, self.norm1, self.gamma1)
        self.lpi.add_to(x, grid, self.norm3, self.gamma3)
        add_feed_forward(x, self.norm2, self.ffn, self.gamma2)
        return x

    def _mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """The two branches in which tokens interact, for training."""
        x = self._add(x, self.xca(self.norm1(x), self.gamma1))
        return self._add(x, self.lpi(self.norm3(x), grid, self.gamma3))

    def _add(self, x: Tensor, branch: Tensor) -> Tensor:
        scale = self._path_scale(x)
        return x + (branch if scale is None else branch * scale)

    def _path_scale(self, x: Tensor) -> Tensor | None:
        """What stochastic depth multiplies a branch with, one factor a sample."""
        if not self.training or self.drop_path.drop_prob == 0:
            return None
        return self.drop_path(x.new_ones(x.shape[0], 1, 1))

    def init_weights(self) -> None:
        super().init_weights()
        for gamma in (self.gamma1, self.gamma2, self.gamma3):
            nn.init.constant_(gamma, self.layer_scale_init)


class ClassAttention(BaseModule):
    """Attention of the class token over all tokens (section 3.3, after CaiT).

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

    def forward(self, tokens: Tensor) -> Tensor:
        """The new class token (B, 1, d) from all tokens (B, 1 + N, d)."""
        values = self._project(tokens, 2)
        attended = self.attention_map(tokens) @ values
        return self.proj(attended.transpose(1, 2).flatten(2))

    def attention_map(self, tokens: Tensor) -> Tensor:
        """The attention of the class token on all tokens, (B, h, 1, 1 + N)."""
        query = self._project(tokens[:, :1], 0)
        keys = self._project(tokens, 1)
        return (query * query.shape[-1] ** -0.5 @ keys.mT).softmax(-1)

    def _project(self, tokens: Tensor, part: int) -> Tensor:
        """Queries (0), keys (1) or values (2) by head, (B, h, N, d/h)."""
        weight = self.qkv.weight.chunk(3)[part]
        bias = None if self.qkv.bias is None else self.qkv.bias.chunk(3)[part]
        projected = F.linear(tokens, weight, bias)
        return projected.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class ClassAttentionLayer(BaseModule):
    """Class attention and a feed-forward network on the class token.

    The patch tokens take part in the residuals, as they do in the released models.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads.
        mlp_ratio (float): Width of the hidden layer over d.
        qkv_bias (bool): Whether queries, keys and values have biases.
        drop_path_rate (float): Stochastic depth.
        layer_scale_init (float): Initial value of LayerScale.
        tokens_norm (bool): Whether the second LayerNorm is for all tokens, not the class token
            alone.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        drop_path_rate: float,
        layer_scale_init: float,
        tokens_norm: bool,
    ) -> None:
        super().__init__()
        self.layer_scale_init = layer_scale_init
        self.tokens_norm = tokens_norm
        self.norm1 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.attn = ClassAttention(embed_dims, num_heads, qkv_bias)
        self.gamma1 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm2 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.ffn = FeedForward(embed_dims, int(embed_dims * mlp_ratio))
        self.gamma2 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Transform the class token and the patch tokens, (B, 1 + N, d)."""
        normed = self.norm1(x)
        attended = torch.cat([self.attn(normed), normed[:, 1:]], dim=1)
        x = x + self.drop_path(self.gamma1 * attended)
        if self.tokens_norm:
            x = self.norm2(x)
        else:
            x = torch.cat([self.norm2(x[:, :1]), x[:, 1:]], dim=1)
        class_token = self.gamma2 * self.ffn(x[:, :1])
        return x + self.drop_path(torch.cat([class_token, x[:, 1:]], dim=1))

    def init_weights(self) -> None:
        super().init_weights()
        for gamma in (self.gamma1, self.gamma2):
            nn.init.constant_(gamma, self.layer_scale_init)
