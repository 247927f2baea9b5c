"""Multi-scale deformable attention, by the function that mmcv itself uses on a CPU."""

import torch
from torch import Tensor


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Attend to a few places of each level; see mmcv's function for the arguments."""
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    return multi_scale_deformable_attn_pytorch(
        value, spatial_shapes, sampling_locations, attention_weights
    )


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Fill the gradients of :func:`ms_deform_attn_forward`."""
    inputs = value, locations, weights = [
        x.detach().requires_grad_() for x in (value, sampling_locations, attention_weights)
    ]
    with torch.enable_grad():
        output = ms_deform_attn_forward(
            value, spatial_shapes, level_start_index, locations, weights, im2col_step
        )
    grads = torch.autograd.grad(output, inputs, grad_output)
    for target, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads, strict=True):
        target.copy_(grad)
