"""RoIAlign: averages by torchvision, maxima in plain PyTorch."""

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import wide

MAX = 0
# What mmcv gives as the maximum of a bin without samples, and as its position.
NO_MAXIMUM, NOWHERE = -10000, -1


class Pooling(NamedTuple):
    """mmcv's settings, which it passes by name.

    Args:
        aligned_height (int): Bins of a box from top to bottom.
        aligned_width (int): Bins from left to right.
        spatial_scale (float): From the coordinates of the boxes to those of the features.
        sampling_ratio (int): Samples per bin in each direction; 0 is about one per feature.
        pool_mode (int): 0 is the maximum of the samples, 1 their average.
        aligned (bool): Whether boxes are shifted by half a feature.
    """

    aligned_height: int
    aligned_width: int
    spatial_scale: float
    sampling_ratio: int
    pool_mode: int
    aligned: bool


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **settings: Any
) -> None:
    """Pool the features in boxes.

    Args:
        input (Tensor): (B, C, H, W).
        rois (Tensor): (N, 5), as index of the image, x1, y1, x2, y2.
        output (Tensor): (N, C, aligned_height, aligned_width), which is filled.
        argmax_y (Tensor): Of the same shape, filled with the positions of the maxima, if any.
        argmax_x (Tensor): The same.
        **settings: See :class:`Pooling`.
    """
    aligned_height, aligned_width, spatial_scale, sampling_ratio, pool_mode, aligned = Pooling(
        **settings
    )
    features, boxes, bins = wide(input), wide(rois), (aligned_height, aligned_width)
    if pool_mode != MAX:
        output.copy_(_average(features, boxes, spatial_scale, *bins, sampling_ratio, aligned))
        return
    start, size = _extent(boxes, spatial_scale, aligned)
    grids = _grids(size, bins, sampling_ratio)
    # Boxes with the same number of samples per bin are processed together.
    for grid in grids.unique(dim=0):
        chosen = (grids == grid).all(1)
        samples = int(grid[0]), int(grid[1])
        if min(samples) < 1:
            output[chosen], argmax_y[chosen], argmax_x[chosen] = NO_MAXIMUM, NOWHERE, NOWHERE
            continue
        fine = aligned_height * samples[0], aligned_width * samples[1]
        values = _average(features, boxes[chosen], spatial_scale, *fine, 1, aligned)
        maxima, index = F.max_pool2d(values, samples, return_indices=True)
        step = (size[chosen] / size.new_tensor(fine))[:, :, None, None, None]
        begin = start[chosen][:, :, None, None, None]
        output[chosen] = maxima.to(output.dtype)
        rows, columns = index // fine[1], index % fine[1]
        argmax_y[chosen] = (begin[:, 0] + (rows + 0.5) * step[:, 0]).to(output.dtype)
        argmax_x[chosen] = (begin[:, 1] + (columns + 0.5) * step[:, 1]).to(output.dtype)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    **settings: Any,
) -> None:
    """The gradient of :func:`roi_align_forward`; ``grad_input`` is filled."""
    pooling = Pooling(**settings)
    grad, boxes = wide(grad_output), wide(rois)
    if pooling.pool_mode == MAX:
        grad_input.copy_(_scatter(grad, boxes, wide(argmax_y), wide(argmax_x), grad_input.shape))
        return
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad,
            boxes,
            pooling.spatial_scale,
            pooling.aligned_height,
            pooling.aligned_width,
            *grad_input.shape,
            pooling.sampling_ratio,
            pooling.aligned,
        )
    )


def _average(
    features: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    return torch.ops.torchvision.roi_align(
        features, boxes, spatial_scale, height, width, sampling_ratio, aligned
    )


def _extent(boxes: Tensor, spatial_scale: float, aligned: bool) -> tuple[Tensor, Tensor]:
    """Where boxes begin and how large they are, in features, as (N, 2) of y and x."""
    shift = 0.5 if aligned else 0.0
    start = boxes[:, [2, 1]] * spatial_scale - shift
    size = boxes[:, [4, 3]] * spatial_scale - shift - start
    return start, size if aligned else size.clamp(min=1)


def _grids(size: Tensor, bins: tuple[int, int], sampling_ratio: int) -> Tensor:
    """How many samples each bin of a box has, as (N, 2) of y and x."""
    if sampling_ratio > 0:
        return torch.full_like(size, sampling_ratio, dtype=torch.long)
    return (size / size.new_tensor(bins)).ceil().long()


def _scatter(grad: Tensor, boxes: Tensor, y: Tensor, x: Tensor, shape: torch.Size) -> Tensor:
    """Give gradients back to the four features around the place where each maximum was found."""
    channels, height, width = shape[1:]
    used = (y != NOWHERE) & (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    grad, y, x = grad * used, y.clamp(0, height - 1), x.clamp(0, width - 1)
    image = boxes[:, 0].long()[:, None] * channels
    plane = (image + torch.arange(channels, device=image.device))[:, :, None, None]
    flat = grad.new_zeros(shape.numel())
    for (row, part_y), (column, part_x) in itertools.product(_two(y, height), _two(x, width)):
        place = (plane * height + row) * width + column
        flat.index_add_(0, place.flatten(), (grad * part_y * part_x).flatten())
    return flat.view(shape)


def _two(place: Tensor, length: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The features before and after a place, and the part that each has in it."""
    low = place.floor()
    part = place - low
    return (low.long(), 1 - part), ((low + 1).clamp(max=length - 1).long(), part)
