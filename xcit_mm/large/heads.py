"""Semantic FPN and UperNet as maps that are computed where they are read."""

from typing import Any

import torch
from mmcv.cnn import ConvModule
from torch import nn

from ..errors import UserError
from .maps import ConvMap, Map, ResizedMap, TensorMap, average_pooled, concatenate

# Rows of the coarsest level that are pooled at a time.
POOLED_ROWS = 16
SUPPORTED = ('FPNHead', 'UPerHead')


def check_segmentor(model: Any) -> None:
    """Raise unless the segmentor's neck and head can run over tiles without seams."""
    if model.training:
        raise ValueError('the segmentor must be in eval mode')
    head = type(model.decode_head).__name__
    neck = type(model.neck).__name__ if model.with_neck else 'FPN'
    if head not in SUPPORTED or neck != 'FPN':
        raise UserError(
            f'--whole knows the heads {" and ".join(SUPPORTED)}, with an FPN or no neck, and this '
            f'segmentor has a {head} on a {neck if model.with_neck else "bare backbone"}. Use the '
            'sliding window instead: --window 2048 --overlap 256.'
        )
    for name, module in model.named_modules():
        used = name.startswith(('neck', 'decode_head'))
        if used and isinstance(module, (nn.GroupNorm, nn.InstanceNorm2d)):
            raise UserError(
                f'--whole needs norm layers that treat every pixel alike, such as BatchNorm, and '
                f'{name} is a {type(module).__name__}. Use --window 2048 --overlap 256.'
            )


def logits_map(model: Any, levels: list[Map]) -> Map:
    """Return the logits of a segmentor at the resolution of its head.

    Args:
        model (EncoderDecoder): The segmentor, in eval mode; see :func:`check_segmentor`.
        levels (list[Map]): What its backbone returns.
    """
    if model.with_neck:
        levels = _fpn(model.neck, levels)
    head = model.decode_head
    inputs = [levels[i] for i in head.in_index]
    features = (_uper_head if type(head).__name__ == 'UPerHead' else _fpn_head)(head, inputs)
    return ConvMap(head.cls_seg, features)


def _convolved(source: Map, module: nn.Module) -> Map:
    """Apply convolution, norm layer and activation to a map."""
    conv: Any = module.conv if isinstance(module, ConvModule) else module
    size, dilation = conv.kernel_size[0], conv.dilation[0]
    radius = dilation * (size - 1) // 2
    if conv.stride != (1, 1) or conv.padding != (radius, radius) or size % 2 == 0:
        raise UserError(f'--whole needs convolutions that keep the size of a map, not {conv}.')
    return ConvMap(module, source, radius=radius)


def _top_down(laterals: list[Map], **options: Any) -> None:
    """Add to each level, in place, the next coarser one, resized."""
    for i in range(len(laterals) - 1, 0, -1):
        coarser = ResizedMap(laterals[i], laterals[i - 1].size, **options)
        laterals[i - 1] = ConvMap(torch.add, laterals[i - 1], coarser)


def _fpn(neck: Any, inputs: list[Map]) -> list[Map]:
    """Return the levels of mmseg's FPN, without those that it adds by pooling."""
    if 'scale_factor' in neck.upsample_cfg:
        raise UserError("--whole needs an FPN that resizes to sizes, not by a 'scale_factor'.")
    used = inputs[neck.start_level :]
    laterals = [_convolved(x, conv) for x, conv in zip(used, neck.lateral_convs)]  # noqa: B905  end_level
    _top_down(laterals, **neck.upsample_cfg)
    return [_convolved(x, conv) for x, conv in zip(laterals, neck.fpn_convs)]  # noqa: B905  extra levels


def _fpn_head(head: Any, inputs: list[Map]) -> Map:
    """Return what FPNHead classifies: all levels, convolved and doubled to equal sizes."""
    levels: list[Map] = []
    for branch, level in zip(head.scale_heads, inputs, strict=True):
        for module in branch:
            if isinstance(module, ConvModule):
                level = _convolved(level, module)
            else:
                height, width = (int(n * module.scale_factor) for n in level.size)
                level = ResizedMap(level, (height, width), module.mode, module.align_corners)
        levels.append(level)
    total, *others = _same_size(head, levels)
    for level in others:
        total = ConvMap(torch.add, total, level)
    return total


def _same_size(head: Any, levels: list[Map]) -> list[Map]:
    """Resize all levels to the size of the first."""
    size, align = levels[0].size, head.align_corners
    return [ResizedMap(level, size, align_corners=align) for level in levels]


def _uper_head(head: Any, inputs: list[Map]) -> Map:
    """Return what UPerHead classifies: pooled context, a top-down path, all levels fused."""
    laterals = [_convolved(x, conv) for x, conv in zip(inputs, head.lateral_convs)]  # noqa: B905  not the last
    laterals.append(_pooled_context(head, inputs[-1]))
    _top_down(laterals, align_corners=head.align_corners)
    levels = [_convolved(x, conv) for x, conv in zip(laterals, head.fpn_convs)]  # noqa: B905  not the last
    levels = _same_size(head, [*levels, laterals[-1]])
    return _convolved(ConvMap(concatenate, *levels), head.fpn_bottleneck)


def _pooled_context(head: Any, level: Map) -> Map:
    """Return the pooling pyramid: averages over large parts of the image, and the level."""
    scales = tuple(head.psp_modules.pool_scales)
    parts: list[Map] = [level]
    for branch, pooled in zip(
        head.psp_modules, average_pooled(level, scales, POOLED_ROWS), strict=True
    ):
        context = TensorMap(branch[1](pooled))
        parts.append(ResizedMap(context, level.size, align_corners=head.align_corners))
    return _convolved(ConvMap(concatenate, *parts), head.bottleneck)
