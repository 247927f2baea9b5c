"""Local patch interaction (section 3.3 of the paper)."""

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F


class LPI(BaseModule):
    """Local patch interaction: two depth-wise 3x3 convolutions, GELU and BatchNorm in between.

    Args:
        embed_dims (int): Width d of the tokens.
        norm_cfg (dict): Config of the BatchNorm.
    """

    def __init__(self, embed_dims: int, norm_cfg: dict) -> None:
        super().__init__()
        # First, because tools fuse BatchNorm into the convolution that is registered before it, and
        # between these two is GELU.
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Let neighboring tokens communicate.

        Args:
            x (Tensor): Tokens (B, N, d).
            grid (tuple[int, int]): Height and width of their grid.
        """
        x = x.unflatten(1, grid).permute(0, 3, 1, 2)
        x = self.conv2(self.norm(F.gelu(self.conv1(x))))
        return x.permute(0, 2, 3, 1).flatten(1, 2)
