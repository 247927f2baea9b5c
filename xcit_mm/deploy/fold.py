"""Folds what inference does not need to compute into the weights next to it, in float64.

- BatchNorm into the convolution before it. The BatchNorm of local patch interaction stays: it comes
  before a convolution that pads with zeros, and the padding must not be shifted.
- LayerScale into the last linear map of each branch.
- The last transposed convolution of a level of the pyramid with the 1x1 convolution that alone
  reads it. For N tokens of width d, and c channels after it, these are 4 N d² + 4 N d c
  multiply-adds, and merged 4 N d c: always fewer.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from mmcv.cnn import ConvModule
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..models import XCiT
from ..models.fast.operators import is_batch_norm
from ..models.layers import ConvNorm, XCiTLayer

Convolution = nn.Conv2d | nn.ConvTranspose2d


def fold(model: nn.Module) -> None:
    """Fold BatchNorm and LayerScale, in place.

    Args:
        model (nn.Module): In eval mode; use a copy of what is still needed.
    """
    for parent, conv, name in list(_conv_then_norm(model)):
        _fold_batch_norm(conv, parent.get_submodule(name))
        parent.set_submodule(name, nn.Identity())
    for module in model.modules():
        if isinstance(module, XCiTLayer):
            _fold_layer_scale(module)


def merge_laterals(backbone: XCiT, laterals: Sequence[nn.Module | None]) -> None:
    """Merge transposed convolutions at the end of a level with what alone reads it, in place.

    Args:
        backbone (XCiT): Already folded.
        laterals (Sequence[nn.Module | None]): For each level, the ConvModule that reads it, or
            None if there is none, or another reader.
    """
    if backbone.pyramid is None:
        return
    for level, lateral in zip(backbone.pyramid.levels, laterals, strict=True):
        children = list(level.named_children())
        name, last = children[-1] if children else ('', None)
        if isinstance(last, nn.ConvTranspose2d) and _is_pointwise(lateral):
            level.set_submodule(name, _merged(last, cast(Any, lateral).conv))
            cast(Any, lateral).conv = nn.Identity()


def _conv_then_norm(model: nn.Module) -> Iterator[tuple[nn.Module, Convolution, str]]:
    """Yield each BatchNorm that follows a convolution: its parent, the convolution and its name."""
    for module in model.modules():
        pairs: list[tuple[nn.Module, str]]
        if isinstance(module, ConvNorm):
            pairs = [(module.conv, 'norm')]
        elif isinstance(module, ConvModule):
            in_order = module.order[:2] == ('conv', 'norm') and module.with_norm
            pairs = [(module.conv, module.norm_name)] if in_order else []
        elif isinstance(module, nn.Sequential):
            names = [name for name, _ in module.named_children()]
            pairs = [(module[i], names[i + 1]) for i in range(len(names) - 1)]
        else:
            continue
        for conv, name in pairs:
            is_conv = isinstance(conv, Convolution) and is_batch_norm(module.get_submodule(name))
            if is_conv and module.get_submodule(name).running_mean is not None:
                yield module, cast(Convolution, conv), name


@torch.no_grad()
def _fold_batch_norm(conv: Any, norm: Any) -> None:
    dtype = conv.weight.dtype
    exact = copy.deepcopy(conv).double(), copy.deepcopy(norm).double()
    fused: Any = fuse_conv_bn_eval(*exact, transpose=isinstance(conv, nn.ConvTranspose2d))
    conv.weight, conv.bias = fused.to(dtype).weight, fused.bias


@torch.no_grad()
def _fold_layer_scale(layer: XCiTLayer) -> None:
    """Scale the last linear map of each branch; ``gamma`` is one afterwards."""
    ends = (layer.xca.proj, layer.gamma1), (layer.lpi.conv2, layer.gamma3)
    for last, gamma in (*ends, (layer.ffn.fc2, layer.gamma2)):
        for parameter in last.parameters():  # (outputs, ...)
            parameter.mul_(gamma.view(-1, *[1] * (parameter.ndim - 1)))
        nn.init.ones_(gamma)


def _is_pointwise(lateral: nn.Module | None) -> bool:
    """Return whether a module is a 1x1 convolution with, at most, an activation after it."""
    if not isinstance(lateral, ConvModule) or lateral.order[0] != 'conv':
        return False
    conv = lateral.conv
    settings = (conv.kernel_size, conv.stride, conv.padding, conv.groups)
    return settings == ((1, 1), (1, 1), (0, 0), 1) and not lateral.with_explicit_padding


@torch.no_grad()
def _merged(up: nn.ConvTranspose2d, lateral: nn.Conv2d) -> nn.ConvTranspose2d:
    """Return a transposed convolution that computes ``lateral(up(x))``; it doubles the size."""
    matrix = lateral.weight[:, :, 0, 0].double()
    merged = nn.ConvTranspose2d(up.in_channels, lateral.out_channels, 2, stride=2)
    weight = torch.einsum('oc,ichw->iohw', matrix, up.weight.double())
    bias = torch.zeros(len(matrix), dtype=torch.float64)
    if up.bias is not None:
        bias = matrix @ up.bias.double()
    if lateral.bias is not None:
        bias = bias + lateral.bias.double()
    merged.weight.copy_(weight)
    merged.bias.copy_(bias)  # type: ignore[union-attr]
    return merged.requires_grad_(False)
