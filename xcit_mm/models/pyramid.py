"""Columnar features to an FPN pyramid: from stride ``patch_size`` to 4, 8, 16, 32."""

from collections.abc import Sequence

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from .chunks import MIN_ROWS, chunk_length

STRIDES = (4, 8, 16, 32)


class Upsample(nn.ConvTranspose2d):
    """Doubles the resolution: transposed convolution with kernel 2 and stride 2.

    Args:
        embed_dims (int): Width d of the features.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, embed_dims, kernel_size=2, stride=2)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Rescale a map (B, d, H, W); over strips of rows where autograd is off.

        Its windows do not overlap, so strips are independent, and they spare the convolution a
        second copy of the network's largest output.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x, output_size)
        batch, dims, height, width = x.shape
        strip = chunk_length(height, 4 * batch * dims * width, x.device, MIN_ROWS)
        if strip >= height:
            return super().forward(x, output_size)
        out = x.new_empty(0)
        for start in range(0, height, strip):
            rows = super().forward(x[:, :, start : start + strip])
            if start == 0:
                out = rows.new_empty(batch, dims, 2 * height, 2 * width)
            out[:, :, 2 * start : 2 * start + rows.shape[2]] = rows
        return out


class MaxPool(nn.Module):
    """Max-pooling whose window shrinks to a map that is smaller than it.

    So an image of one patch has all four levels. On larger maps it is ``nn.MaxPool2d``.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        window = (min(self.stride, x.shape[2]), min(self.stride, x.shape[3]))
        return F.max_pool2d(x, window, self.stride)


class Pyramid(BaseModule):
    """Rescales features by transposed convolutions and max-pooling.

    Args:
        embed_dims (int): Width d of the features.
        patch_size (int): Their stride, 8 or 16.
        num_levels (int): How many of the strides 4, 8, 16, 32 are made.
        norm_cfg (dict): Config of the BatchNorm between two transposed convolutions.
    """

    def __init__(self, embed_dims: int, patch_size: int, num_levels: int, norm_cfg: dict) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for stride in STRIDES[:num_levels]:
            if stride * 4 == patch_size:
                norm = build_norm_layer(norm_cfg, embed_dims)[1]
                level = nn.Sequential(Upsample(embed_dims), norm, nn.GELU(), Upsample(embed_dims))
            elif stride * 2 == patch_size:
                level = nn.Sequential(Upsample(embed_dims))
            elif stride == patch_size:
                level = nn.Sequential()
            else:
                level = nn.Sequential(MaxPool(stride // patch_size))
            self.levels.append(level)

    def rescale(self, index: int, feature: Tensor) -> Tensor:
        """One level, (B, d, H', W'), from its feature (B, d, H, W)."""
        return self.levels[index](feature)

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All levels, from the finest to the coarsest."""
        return tuple(self.rescale(i, feature) for i, feature in enumerate(features))
