"""Deformable convolution, with and without modulation, by torchvision.

mmcv passes tensors by position and settings by name.
"""

import torch
from torch import Tensor

from .common import upcast_half

# mmcv's names for the last arguments of torchvision's operators, in their order.
PLAIN = ('dH', 'dW', 'padH', 'padW', 'dilationH', 'dilationW', 'group', 'deformable_group')
MODULATED = (
    'stride_h', 'stride_w', 'pad_h', 'pad_w', 'dilation_h', 'dilation_w', 'group',
    'deformable_group',
)  # fmt: skip


def _geometry(names: tuple[str, ...], settings: dict[str, int]) -> tuple[int, ...]:
    return (*(settings[name] for name in names), names is MODULATED)


def _forward(geometry: tuple[int, ...], *tensors: Tensor) -> Tensor:
    """Return the output for input, weight, offset, mask and bias."""
    return torch.ops.torchvision.deform_conv2d(*map(upcast_half, tensors), *geometry)


def _backward(geometry: tuple[int, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of all tensors but the first, which is that of the output."""
    return torch.ops.torchvision._deform_conv2d_backward(*map(upcast_half, tensors), *geometry)


def _unused(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask and a bias for convolutions without them."""
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
    geometry = _geometry(PLAIN, settings)
    output.copy_(_forward(geometry, input, weight, offset, *_unused(input, weight)))


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
    geometry, unused = _geometry(PLAIN, settings), _unused(input, weight)
    grads = _backward(geometry, grad_output, input, weight, offset, *unused)
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
        geometry, unused = _geometry(PLAIN, settings), _unused(input, weight)
        columns = _backward(geometry, grad_output, input, weight, offset, *unused)[1]
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
    output.copy_(_forward(_geometry(MODULATED, settings), input, weight, offset, mask, bias))


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
    """Fill the gradients of :func:`modulated_deform_conv_forward`."""
    bias = bias if with_bias else input.new_zeros(len(weight))
    geometry = _geometry(MODULATED, settings)
    grads = _backward(geometry, grad_output, input, weight, offset, mask, bias)
    for target, grad in zip((grad_input, grad_weight, grad_offset, grad_mask), grads, strict=False):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])
