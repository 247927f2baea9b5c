"""RoIAlign by torchvision, which averages the samples of a bin, as all models of mmdet do."""

import torch
from torch import Tensor

from .common import missing_operator, upcast_half

# What mmcv calls the maximum of the samples.
MAX = 0


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average the features in boxes.

    Args:
        input (Tensor): (B, C, H, W).
        rois (Tensor): (N, 5), as index of the image, x1, y1, x2, y2.
        output (Tensor): (N, C, aligned_height, aligned_width), which is filled.
        argmax_y (Tensor): Unused, as is ``argmax_x``: the positions of maxima.
        argmax_x (Tensor): See ``argmax_y``.
        aligned_height (int): Bins of a box from top to bottom.
        aligned_width (int): Bins from left to right.
        spatial_scale (float): From the coordinates of the boxes to those of the features.
        sampling_ratio (int): Samples per bin in each direction; 0 is about one per feature.
        pool_mode (int): 0 is the maximum of the samples, which is not provided, 1 their average.
        aligned (bool): Whether boxes are shifted by half a feature.
    """
    if pool_mode == MAX:
        raise missing_operator("roi_align with pool_mode='max'")
    output.copy_(
        torch.ops.torchvision.roi_align(
            upcast_half(input),
            upcast_half(rois),
            spatial_scale,
            aligned_height,
            aligned_width,
            sampling_ratio,
            aligned,
        )
    )


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    *,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill ``grad_input`` with the gradient of :func:`roi_align_forward`."""
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            upcast_half(grad_output),
            upcast_half(rois),
            spatial_scale,
            aligned_height,
            aligned_width,
            *grad_input.shape,
            sampling_ratio,
            aligned,
        )
    )
