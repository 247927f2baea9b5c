"""The two operators of detectors that ONNX has and PyTorch lacks, and their translation.

They are declared with the shapes of their results alone: PyTorch never computes them here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# The score of a box that was suppressed, or that never was there.
NONE = -1.0

torch.library.define(
    'xcit_mm::suppress',
    '(Tensor boxes, Tensor scores, float iou_threshold, float score_threshold, int limit) '
    '-> Tensor',
)
torch.library.define(
    'xcit_mm::roi_align',
    '(Tensor[] features, Tensor boxes, Tensor images, Tensor levels, float[] scales, '
    'int[] size, int samples, bool aligned) -> Tensor',
)


def suppress(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int
) -> Tensor:
    """Non-maximum suppression in each of P sets of boxes.

    Args:
        boxes (Tensor): (P, N, 4).
        scores (Tensor): (P, N).
        iou_threshold (float): A box that overlaps a better one by more than this is suppressed.
        score_threshold (float): So is one that does not score above this.
        limit (int): At most so many boxes of each set remain, the best.

    Returns:
        Tensor: The scores (P, N), with :data:`NONE` for suppressed boxes.
    """
    return torch.ops.xcit_mm.suppress(boxes, scores, iou_threshold, score_threshold, limit)


@torch.library.register_fake('xcit_mm::suppress')
def _(boxes: Tensor, scores: Tensor, *_: float) -> Tensor:
    return torch.empty_like(scores)


def roi_align(
    features: Sequence[Tensor],
    boxes: Tensor,
    images: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    size: tuple[int, int],
    samples: int,
    aligned: bool,
) -> Tensor:
    """RoIAlign of each box on its own level of a pyramid.

    Args:
        features (Sequence[Tensor]): The levels, (B, C, H, W).
        boxes (Tensor): (R, 4).
        images (Tensor): The image of each box, (R).
        levels (Tensor): The level of each box, (R).
        scales (Sequence[float]): Pixels of each level per pixel of the image.
        size (tuple[int, int]): Height and width of the result.
        samples (int): Samples per bin and axis; 0 for as many as the bin has pixels.
        aligned (bool): Whether pixels are points at their centers.

    Returns:
        Tensor: (R, C, height, width).
    """
    return torch.ops.xcit_mm.roi_align(
        features, boxes, images, levels, scales, size, samples, aligned
    )


@torch.library.register_fake('xcit_mm::roi_align')
def _(
    features: Sequence[Tensor],
    boxes: Tensor,
    images: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    size: Sequence[int],
    samples: int,
    aligned: bool,
) -> Tensor:
    return features[0].new_empty(boxes.shape[0], features[0].shape[1], *size)


def translations() -> dict[Callable, Callable]:
    """From these operators to functions that write them in ONNX's own; needs onnxscript."""
    from onnxscript.onnx_opset import opset18 as op

    def suppress(
        boxes: Any,
        scores: Any,
        iou_threshold: float,
        score_threshold: float,
        limit: int,
    ) -> Any:
        chosen = op.NonMaxSuppression(
            boxes,
            op.Unsqueeze(scores, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[limit]),
            op.Constant(value_floats=[iou_threshold]),
            op.Constant(value_floats=[score_threshold]),
        )  # (M, 3): set, class, box
        place = op.Gather(chosen, op.Constant(value_ints=[0, 2]), axis=1)
        nothing = op.Expand(op.Constant(value_float=NONE), op.Shape(scores))
        return op.ScatterND(nothing, place, op.GatherND(scores, place))

    def roi_align(
        features: Sequence[Any],
        boxes: Any,
        images: Any,
        levels: Any,
        scales: Sequence[float],
        size: Sequence[int],
        samples: int,
        aligned: bool,
    ) -> Any:
        order, pieces = [], []
        for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
            here = op.Equal(levels, op.Constant(value_int=level))
            here = op.Reshape(op.NonZero(here), op.Constant(value_ints=[-1]))
            order.append(here)
            pieces.append(
                op.RoiAlign(
                    feature,
                    op.Gather(boxes, here, axis=0),
                    op.Gather(images, here, axis=0),
                    coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel',
                    spatial_scale=scale,
                    output_height=size[0],
                    output_width=size[1],
                    sampling_ratio=samples,
                )
            )
        # The pieces are in the order of the levels: put each box back in its place.
        place = op.Concat(*order, axis=0)
        count = op.Squeeze(op.Shape(place))
        zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
        back = op.ScatterElements(place, place, op.Range(zero, count, one), axis=0)
        return op.Gather(op.Concat(*pieces, axis=0), back, axis=0)

    return {
        torch.ops.xcit_mm.suppress.default: suppress,
        torch.ops.xcit_mm.roi_align.default: roi_align,
    }
