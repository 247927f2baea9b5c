"""The XCiT layer (figure 1 of the paper)."""

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from .feed_forward import FeedForward
from .lpi import LPI
from .xca import XCA

LAYER_NORM_EPS = 1e-6


class XCiTLayer(BaseModule):
    """Cross-covariance attention, local patch interaction and feed-forward network.

    Each is a residual branch with LayerNorm before it, LayerScale γ after it, and stochastic depth.
    The order of the branches and the numbers in the names are those of the released weights.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads of the attention.
        mlp_ratio (float): Width of the feed-forward network's hidden layer over d.
        qkv_bias (bool): Whether queries, keys and values have biases.
        drop_path_rate (float): Stochastic depth.
        layer_scale_init (float): Initial value of LayerScale.
        norm_cfg (dict): Config of the BatchNorm.
    """

    def __init__(
        self,
        embed_dims: int,
        *,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        drop_path_rate: float,
        layer_scale_init: float,
        norm_cfg: dict,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.xca = XCA(embed_dims, num_heads, qkv_bias)
        self.gamma1 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm3 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.lpi = LPI(embed_dims, norm_cfg)
        self.gamma3 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.norm2 = nn.LayerNorm(embed_dims, eps=LAYER_NORM_EPS)
        self.ffn = FeedForward(embed_dims, int(embed_dims * mlp_ratio))
        self.gamma2 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Transform tokens.

        Args:
            x (Tensor): Tokens (B, N, d).
            grid (tuple[int, int]): Height and width of their grid.
        """
        x = x + self.drop_path(self.gamma1 * self.xca(self.norm1(x)))
        x = x + self.drop_path(self.gamma3 * self.lpi(self.norm3(x), grid))
        x = x + self.drop_path(self.gamma2 * self.ffn(self.norm2(x)))
        return x
