"""Columnar features to an FPN pyramid: from stride ``patch_size`` to 4, 8, 16, 32, 64."""

from collections.abc import Sequence

import torch.fx
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

# All supported strides. The paper's pyramid has the first four.
STRIDES = (4, 8, 16, 32, 64)


class MaxPool(nn.Module):
    """Max-pooling with a window that shrinks to fit smaller maps.

    So even an image of one patch has all levels. On larger maps it is ``nn.MaxPool2d``.

    Args:
        stride (int): Stride and size of the window.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Shrink a map (B, d, H, W)."""
        return _max_pool(x, self.stride)


@torch.fx.wrap  # a tracer of torch.fx does not know the size
def _max_pool(x: Tensor, stride: int) -> Tensor:
    window = (min(stride, x.shape[2]), min(stride, x.shape[3]))
    return F.max_pool2d(x, window, stride)


class Levels(nn.ModuleList):
    """Levels named by their stride: ``0`` is stride 4, ``1`` is stride 8, and so on.

    So the weights of a level never load into one of another stride. Indices are positions.
    """

    def __getitem__(self, index: int) -> nn.Module:  # type: ignore[override]
        return list(self)[index]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        names = [name for name, _ in self.named_children()]
        setattr(self, names[index], module)


class Pyramid(BaseModule):
    """Rescales features with transposed convolutions and max-pooling.

    Args:
        embed_dims (int): Width d of the features.
        patch_size (int): Their stride, 8 or 16.
        strides (Sequence[int]): The strides to make, from :data:`STRIDES`.
        norm_cfg (dict): Config of the BatchNorm between two transposed convolutions.
    """

    def __init__(
        self, embed_dims: int, patch_size: int, strides: Sequence[int], norm_cfg: dict
    ) -> None:
        super().__init__()
        self.strides = tuple(strides)
        self.levels = Levels()
        for stride in strides:
            if stride * 4 == patch_size:
                norm = build_norm_layer(norm_cfg, embed_dims)[1]
                modules = [_upsample(embed_dims), norm, nn.GELU(), _upsample(embed_dims)]
            elif stride * 2 == patch_size:
                modules = [_upsample(embed_dims)]
            elif stride == patch_size:
                modules = []
            else:
                modules = [MaxPool(stride // patch_size)]
            self.levels.add_module(str(STRIDES.index(stride)), nn.Sequential(*modules))

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return all levels, from the finest to the coarsest, from features (B, d, H, W)."""
        return tuple(level(x) for level, x in zip(self.levels, features, strict=True))


def _upsample(embed_dims: int) -> nn.ConvTranspose2d:
    """Double the resolution."""
    return nn.ConvTranspose2d(embed_dims, embed_dims, kernel_size=2, stride=2)
