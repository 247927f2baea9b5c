"""Folds what inference does not need to compute into the weights next to it, in float64.

- BatchNorm into the convolution before it. The BatchNorm of local patch interaction stays: it comes
  before a convolution that pads with zeros, and the padding must not be shifted.
- LayerScale into the last linear map of each branch.
- The last transposed convolution of a level of the pyramid with the 1x1 convolution that alone
  reads it. For N tokens of width d, and c channels after it, these are 4 N d² + 4 N d c
  multiply-adds, and merged 4 N d c: always fewer.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from mmcv.cnn import ConvModule
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..models.fast import is_batch_norm
from ..models.layers import ConvNorm, XCiTLayer


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


def merge_laterals(model: Any) -> None:
    """Merge transposed convolutions at the end of a level with what alone reads it, in place.

    Args:
        model (nn.Module): A detector or segmentor, already folded.
    """
    if model.backbone.pyramid is None:
        return
    for level, lateral in zip(model.backbone.pyramid.levels, _readers(model), strict=False):
        children = list(level.named_children())
        name, last = children[-1] if children else ('', None)
        if isinstance(last, nn.ConvTranspose2d) and _is_pointwise(lateral):
            level.set_submodule(name, _merged(last, lateral.conv))
            lateral.conv = nn.Identity()


def _readers(model: Any) -> list[Any]:
    """Return the ConvModule that alone reads each level; None for levels with other readers."""
    if model.with_neck:
        return [*[None] * model.neck.start_level, *model.neck.lateral_convs]
    laterals = list(getattr(model.decode_head, 'lateral_convs', ()))  # UperNet's
    reads_all = list(model.decode_head.in_index) == list(range(len(laterals) + 1))
    return laterals if reads_all else []


def _conv_then_norm(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module, str]]:
    """Yield each BatchNorm that follows a convolution: its parent, the convolution and its name."""
    for module in model.modules():
        is_chain = isinstance(module, (ConvNorm, nn.Sequential))
        if is_chain or (isinstance(module, ConvModule) and module.order[:2] == ('conv', 'norm')):
            for (_, conv), (name, norm) in itertools.pairwise(module.named_children()):
                is_conv = isinstance(conv, (nn.Conv2d, nn.ConvTranspose2d))
                if is_conv and is_batch_norm(norm) and norm.running_mean is not None:
                    yield module, conv, name


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


def _is_pointwise(lateral: Any) -> bool:
    """Return whether a module is a 1x1 convolution with, at most, an activation after it."""
    if not isinstance(lateral, ConvModule) or lateral.order[0] != 'conv':
        return False
    conv = lateral.conv
    settings = (conv.kernel_size, conv.stride, conv.padding, conv.groups)
    is_plain = conv.bias is not None and not lateral.with_explicit_padding
    return is_plain and settings == ((1, 1), (1, 1), (0, 0), 1)


@torch.no_grad()
def _merged(up: Any, lateral: Any) -> Any:
    """Return a transposed convolution that computes ``lateral(up(x))``; it doubles the size."""
    matrix = lateral.weight[:, :, 0, 0].double()
    merged: Any = nn.ConvTranspose2d(up.in_channels, lateral.out_channels, 2, stride=2)
    merged.weight.copy_(torch.einsum('oc,ichw->iohw', matrix, up.weight.double()))
    merged.bias.copy_(matrix @ up.bias.double() + lateral.bias.double())
    return merged
