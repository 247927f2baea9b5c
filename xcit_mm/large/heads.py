"""Semantic FPN and UperNet as maps that are computed where they are read."""

from typing import Any, cast

from mmcv.cnn import ConvModule
from torch import nn

from ..errors import UserError
from .maps import ConcatMap, ConvMap, Map, ResizedMap, SumMap, TensorMap, average_pooled

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
    features = _uper_head(head, inputs) if _is(head, 'UPerHead') else _fpn_head(head, inputs)
    return ConvMap(features, head.cls_seg)


def _is(module: nn.Module, name: str) -> bool:
    return type(module).__name__ == name


def _convolved(source: Map, module: nn.Module) -> Map:
    """Apply convolution, norm layer and activation to a map."""
    conv: Any = module.conv if isinstance(module, ConvModule) else module
    size, dilation = conv.kernel_size[0], conv.dilation[0]
    radius = dilation * (size - 1) // 2
    if conv.stride != (1, 1) or conv.padding != (radius, radius) or size % 2 == 0:
        raise UserError(f'--whole needs convolutions that keep the size of a map, not {conv}.')
    return ConvMap(source, module, radius)


def _fpn(neck: Any, inputs: list[Map]) -> list[Map]:
    """Return the levels of mmseg's FPN, without those that it adds by pooling."""
    cfg = dict(neck.upsample_cfg)
    if 'scale_factor' in cfg:
        raise UserError("--whole needs an FPN that resizes to sizes, not by a 'scale_factor'.")
    laterals = [
        _convolved(inputs[i + neck.start_level], conv) for i, conv in enumerate(neck.lateral_convs)
    ]
    for i in range(len(laterals) - 1, 0, -1):
        laterals[i - 1] = SumMap(
            laterals[i - 1], ResizedMap(laterals[i], laterals[i - 1].size, **cfg)
        )
    return [_convolved(lateral, conv) for lateral, conv in zip(laterals, neck.fpn_convs)]  # noqa: B905  extra levels


def _fpn_head(head: Any, inputs: list[Map]) -> Map:
    """Return what FPNHead classifies: all levels, convolved and doubled to equal sizes."""
    total: Map | None = None
    for branch, level in zip(head.scale_heads, inputs, strict=True):
        for module in branch:
            if isinstance(module, ConvModule):
                level = _convolved(level, module)
            else:
                height, width = (int(n * module.scale_factor) for n in level.size)
                level = ResizedMap(level, (height, width), module.mode, module.align_corners)
        if total is None:
            total = level
        else:
            total = SumMap(total, ResizedMap(level, total.size, align_corners=head.align_corners))
    return cast(Map, total)


def _uper_head(head: Any, inputs: list[Map]) -> Map:
    """Return what UPerHead classifies: pooled context, a top-down path, all levels fused."""
    laterals = [_convolved(x, conv) for x, conv in zip(inputs, head.lateral_convs)]  # noqa: B905  not the last
    laterals.append(_pooled_context(head, inputs[-1]))

    def resized(source: Map, size: tuple[int, int]) -> Map:
        return ResizedMap(source, size, align_corners=head.align_corners)

    for i in range(len(laterals) - 1, 0, -1):
        laterals[i - 1] = SumMap(laterals[i - 1], resized(laterals[i], laterals[i - 1].size))
    outs = [_convolved(x, conv) for x, conv in zip(laterals, head.fpn_convs)]  # noqa: B905  not the last
    outs.append(laterals[-1])
    stack = ConcatMap([resized(out, outs[0].size) for out in outs])
    return _convolved(stack, head.fpn_bottleneck)


def _pooled_context(head: Any, level: Map) -> Map:
    """Return the pooling pyramid: averages over large parts of the image, and the level."""
    scales = tuple(head.psp_modules.pool_scales)
    parts: list[Map] = [level]
    for branch, pooled in zip(
        head.psp_modules, average_pooled(level, scales, POOLED_ROWS), strict=True
    ):
        context = TensorMap(branch[1](pooled))
        parts.append(ResizedMap(context, level.size, align_corners=head.align_corners))
    return _convolved(ConcatMap(parts), head.bottleneck)
