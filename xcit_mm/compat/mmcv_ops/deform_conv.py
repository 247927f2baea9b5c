"""Deformable convolution, with and without modulation, by torchvision.

mmcv passes tensors by position and settings by name.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .precision import wide


class Geometry(NamedTuple):
    """The last arguments of torchvision's operators, in their order."""

    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    group: int
    deformable_group: int
    modulated: bool


def _plain(
    *,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> Geometry:
    """The geometry of a convolution without modulation, from mmcv's settings for it."""
    return Geometry(dH, dW, padH, padW, dilationH, dilationW, group, deformable_group, False)


def _modulated(*, kernel_h: int, kernel_w: int, **geometry: int) -> Geometry:
    """The geometry of a convolution with modulation, from mmcv's settings for it."""
    return Geometry(**geometry, modulated=True)


def _forward(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, geometry: Geometry
) -> Tensor:
    tensors = (wide(x) for x in (input, weight, offset, mask, bias))
    return torch.ops.torchvision.deform_conv2d(*tensors, *geometry)


def _backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    geometry: Geometry,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight, offset, mask and bias."""
    tensors = (wide(x) for x in (grad, input, weight, offset, mask, bias))
    return torch.ops.torchvision._deform_conv2d_backward(*tensors, *geometry)


def _unused(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A mask and a bias for convolutions without them."""
    return input.new_zeros(len(input), 1), input.new_zeros(len(weight))


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    **settings: int,
) -> None:
    """Convolve without modulation; ``output`` is filled."""
    output.copy_(_forward(input, weight, offset, *_unused(input, weight), _plain(**settings)))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **settings: int,
) -> None:
    """Fill the gradients of input and offsets, and keep that of the weight in ``columns``."""
    unused = _unused(input, weight)
    grads = _backward(grad_output, input, weight, offset, *unused, _plain(**settings))
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[2])
    columns.resize_(weight.shape).copy_(grads[1])


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    *,
    scale: float,
    **settings: int,
) -> None:
    """Fill the gradient of the weight.

    torchvision computes all gradients at once. mmcv asks for those of input and offset first,
    unless it needs neither, and hands its scratch tensor ``columns`` to both calls.
    """
    if not columns.numel():
        weight = torch.zeros_like(grad_weight)
        unused = _unused(input, weight)
        grads = _backward(grad_output, input, weight, offset, *unused, _plain(**settings))
        columns = grads[1]
    grad_weight.copy_(scale * columns)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    *,
    with_bias: bool,
    **settings: int,
) -> None:
    """Convolve with modulation; ``output`` is filled."""
    bias = bias if with_bias else input.new_zeros(len(weight))
    output.copy_(_forward(input, weight, offset, mask, bias, _modulated(**settings)))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    *,
    with_bias: bool,
    **settings: int,
) -> None:
    """The gradients of :func:`modulated_deform_conv_forward`, which are filled."""
    bias = bias if with_bias else input.new_zeros(len(weight))
    grads = _backward(grad_output, input, weight, offset, mask, bias, _modulated(**settings))
    for target, grad in zip((grad_input, grad_weight, grad_offset, grad_mask), grads, strict=False):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])
