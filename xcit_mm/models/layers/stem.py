"""Image to tokens: convolutional patch projection."""

import itertools
import math

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNorm(nn.Module):
    """3x3 convolution of stride 2 without bias, then BatchNorm.

    Args:
        in_channels (int): Channels of the input.
        out_channels (int): Channels of the output.
        norm_cfg (dict): Config of the BatchNorm.
    """

    def __init__(self, in_channels: int, out_channels: int, norm_cfg: dict) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False)
        self.norm = build_norm_layer(norm_cfg, out_channels)[1]

    def forward(self, x: Tensor) -> Tensor:
        """Halve the resolution of a map (B, C, H, W), rounding up."""
        return self.norm(self.conv(x))


class ConvPatchEmbed(BaseModule):
    """Projects patches of 8x8 or 16x16 pixels to tokens with three or four convolutions.

    Sizes that are not multiples of the patch size are rounded up.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Width d of the tokens.
        patch_size (int): 8 or 16.
        norm_cfg (dict): Config of the BatchNorm layers.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm_cfg: dict) -> None:
        super().__init__()
        halvings = int(math.log2(patch_size))
        widths = [in_channels, *(embed_dims >> i for i in reversed(range(halvings)))]
        self.embed_dims = embed_dims
        self.layers = nn.ModuleList(
            ConvNorm(*pair, norm_cfg=norm_cfg) for pair in itertools.pairwise(widths)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Project images (B, C, H, W).

        Returns:
            tuple[Tensor, tuple[int, int]]: Tokens (B, N, d), and height and width of their grid.
        """
        first, *others = self.layers
        x = first(images)
        for layer in others:
            x = layer(F.gelu(x))
        # Not flatten(2).transpose(1, 2): for a batch of one on a CPU, torch's BatchNorm then gets a
        # gradient whose layout it misreads.
        return x.permute(0, 2, 3, 1).flatten(1, 2), (x.shape[2], x.shape[3])
