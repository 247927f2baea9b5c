"""Local patch interaction (section 3.3 of the paper)."""

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from .layout import map_to_tokens, tokens_to_map


class LPI(BaseModule):
    """Lets neighbouring tokens communicate: two depth-wise 3x3 convolutions.

    GELU and BatchNorm are between them. Tokens in memory are a channels-last map, in which
    depth-wise convolution needs no transpose.

    Args:
        embed_dims (int): Width d of the tokens.
        norm_cfg (dict): Config of the BatchNorm.
    """

    def __init__(self, embed_dims: int, norm_cfg: dict) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, tokens: Tensor, grid: tuple[int, int], gamma: Tensor) -> Tensor:
        """Filter tokens (B, N, d) on their grid.

        Args:
            tokens (Tensor): The tokens, normalised by the layer.
            grid (tuple[int, int]): Height and width of their grid.
            gamma (Tensor): LayerScale (d), folded into the second convolution.
        """
        x = self.conv1(tokens_to_map(tokens, grid))
        x = F.gelu(x) if torch.is_grad_enabled() else torch.ops.aten.gelu_(x)
        x = self.norm(x)
        weight = gamma[:, None, None, None] * self.conv2.weight
        x = F.conv2d(x, weight, gamma * self.conv2.bias, padding=1, groups=len(gamma))
        return map_to_tokens(x)
