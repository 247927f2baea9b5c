"""The models as graphs: what is exported, for images of any size in batches of any size.

A graph calls the modules of a model, but not its ``predict``: that loops over images and looks at
numbers. Everything here has the same operators for every image.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..configs import read_preprocessor
from ..models import XCiT
from ..models.fast import attention_from_statistics, linear_map, shift_origin, statistics
from ..models.layers import XCiTLayer
from ..models.pyramid import MaxPool
from .metadata import Options


class Input(nn.Module):
    """Images (B, C, H, W), raw or normalized, to what the network takes.

    Args:
        model (nn.Module): A detector or a segmentor.
        options (Options): Say whether values are raw, and the order of their channels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__()
        self.settings = settings = read_preprocessor(model.data_preprocessor)
        self.is_raw = options.uint8
        in_other_order = options.channel_order != settings.channel_order
        self.swaps = self.is_raw and in_other_order and model.backbone.in_channels == 3
        shape = (1, -1, 1, 1)
        self.register_buffer('mean', torch.tensor(settings.mean or [0.0]).view(shape))
        self.register_buffer('std', torch.tensor(settings.std or [1.0]).view(shape))

    def forward(self, image: Tensor) -> Tensor:
        x = image.flip(1) if self.swaps else image
        if self.is_raw:
            x = (x.to(torch.float32) - self.mean) / self.std
        divisor = self.settings.divisor
        if divisor > 1:
            height, width = x.shape[2], x.shape[3]
            below = (height + divisor - 1) // divisor * divisor - height
            right = (width + divisor - 1) // divisor * divisor - width
            x = F.pad(x, (0, right, 0, below), value=self.settings.pad_value)
        return x


class Backbone(nn.Module):
    """XCiT with folded weights, in the covariance form whatever the size of the image.

    A graph cannot choose the form by cost. With few tokens the token form is cheaper, but then both
    cost little.

    Args:
        backbone (XCiT): Already folded.
    """

    def __init__(self, backbone: XCiT) -> None:
        super().__init__()
        self.xcit = backbone
        for module in [m for m in backbone.modules() if isinstance(m, nn.Sequential)]:
            for name, child in module.named_children():
                if isinstance(child, MaxPool):  # its window depends on the size
                    module.set_submodule(name, nn.MaxPool2d(child.stride, child.stride))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return features (B, d, H, W), one per level."""
        x, grid = self.xcit.embed(image)
        kept: list[Tensor] = []
        for index, layer in enumerate(self.xcit.layers):
            x = run_layer(cast(XCiTLayer, layer), x, grid)
            if index in self.xcit.out_indices:
                kept.append(self.xcit.keep(len(kept), x, grid))
        return self.xcit.finish(kept)


def run_layer(layer: XCiTLayer, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Run tokens (B, N, d) through a layer whose LayerScale is folded."""
    tokens, qkv_bias = shift_origin(layer.xca, layer.norm1(x))
    attention = attention_from_statistics(layer.xca, statistics(tokens), qkv_bias)
    weight, bias = linear_map(layer.xca, attention, qkv_bias)
    x = x + (tokens @ weight.mT + bias[:, None])
    x = x + layer.lpi(layer.norm3(x), grid)
    return x + layer.ffn(layer.norm2(x))


class Features(nn.Module):
    """Images to the features of the backbone alone.

    Args:
        model (nn.Module): A detector or a segmentor, already folded.
        options (Options): What the user asks for.
    """

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__()
        self.output_names = [f'level_{i}' for i in range(len(model.backbone.out_indices))]
        self.input = Input(model, options)
        self.backbone = Backbone(model.backbone)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.backbone(self.input(image))


class Segmentor(nn.Module):
    """Images to logits (B, K, H, W) at their size, or to labels (B, H, W).

    Args:
        model (nn.Module): An mmseg EncoderDecoder, already folded.
        options (Options): What the user asks for.
    """

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__()
        self.output_names = ['labels' if options.labels else 'logits']
        self.input = Input(model, options)
        self.backbone = Backbone(model.backbone)
        self.neck = model.neck if model.with_neck else nn.Identity()
        self.head: Any = model.decode_head
        replace_modules(self.head)
        self.gives_labels = options.labels

    def forward(self, image: Tensor) -> Tensor:
        x = self.input(image)
        logits = self.head(self.neck(self.backbone(x)))
        options = dict(mode='bilinear', align_corners=self.head.align_corners)
        logits = F.interpolate(logits, x.shape[2:], **options)
        logits = logits[:, :, : image.shape[2], : image.shape[3]]
        return self.to_labels(logits) if self.gives_labels else logits

    def to_labels(self, logits: Tensor) -> Tensor:
        """Return the class with the largest logit, or whether the only one passes a threshold."""
        if logits.shape[1] == 1:
            return (logits[:, 0].sigmoid() > self.head.threshold).to(torch.uint8)
        return logits.argmax(1).to(torch.uint8 if logits.shape[1] < 256 else torch.int32)


def replace_modules(head: nn.Module) -> None:
    """Replace, in place, modules that cannot be exported for images of any size."""
    for name, module in list(head.named_modules()):
        if isinstance(module, nn.AdaptiveAvgPool2d):
            head.set_submodule(name, AveragePool(cast(int, module.output_size)))
        elif type(module).__name__ == 'Upsample' and module.scale_factor:
            head.set_submodule(name, Enlarge(int(module.scale_factor), module.align_corners))


class Enlarge(nn.Module):
    """mmseg's Upsample by a whole number, which computes sizes as floats."""

    def __init__(self, factor: int, align_corners: bool) -> None:
        super().__init__()
        self.factor = factor
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[2] * self.factor, x.shape[3] * self.factor)
        return F.interpolate(x, size, mode='bilinear', align_corners=self.align_corners)


class AveragePool(nn.Module):
    """nn.AdaptiveAvgPool2d as two products: ONNX has no such operator for any size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (window_average(length, self.size, x) for length in x.shape[2:])
        return rows @ x @ columns.mT


def window_average(length: int, bins: int, like: Tensor) -> Tensor:
    """Return the matrix (bins, length) that averages the windows of adaptive pooling."""
    position = torch.arange(length, device=like.device)
    index = torch.arange(bins, device=like.device)
    start, stop = index * length // bins, ((index + 1) * length + bins - 1) // bins
    inside = (position >= start[:, None]) & (position < stop[:, None])
    return inside.to(like.dtype) / (stop - start)[:, None].to(like.dtype)
