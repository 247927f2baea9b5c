"""The two operators of detectors that ONNX has and PyTorch lacks, and their translation.

In PyTorch, mmcv's operators compute them. An exported file has ONNX's own.
"""

from collections.abc import Callable
from typing import Any, Sequence  # noqa: UP035 - torch 2.6 knows no other Sequence

import torch
from torch import Tensor

# The score of a box that was suppressed, or that never was there.
NONE = -1.0


@torch.library.custom_op('xcit_mm::suppress', mutates_args=())
def suppress(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int
) -> Tensor:
    """Suppress all but the best of overlapping boxes, in each of P sets of boxes.

    Args:
        boxes (Tensor): (P, N, 4).
        scores (Tensor): (P, N).
        iou_threshold (float): A box that overlaps a better one by more than this is suppressed.
        score_threshold (float): So is one that does not score above this.
        limit (int): Maximum number of boxes kept per set.

    Returns:
        Tensor: The scores (P, N), with :data:`NONE` for suppressed boxes.
    """
    from mmcv.ops import nms

    kept = torch.full_like(scores, NONE)
    for i in range(len(boxes)):
        (places,) = torch.where(scores[i] > score_threshold)
        if len(places):
            best = nms(boxes[i, places], scores[i, places], iou_threshold)[1][:limit]
            kept[i, places[best]] = scores[i, places[best]]
    return kept


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, *_: float) -> Tensor:
    return torch.empty_like(scores)


@torch.library.custom_op('xcit_mm::roi_align', mutates_args=())
def roi_align(
    features: Sequence[Tensor],
    boxes: Tensor,
    images: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    size: Sequence[int],
    samples: int,
    aligned: bool,
) -> Tensor:
    """Compute RoIAlign of each box on its own level of a pyramid.

    Args:
        features (Sequence[Tensor]): The levels, (B, C, H, W).
        boxes (Tensor): (R, 4).
        images (Tensor): The image of each box, (R).
        levels (Tensor): The level of each box, (R).
        scales (Sequence[float]): Pixels of each level per pixel of the image.
        size (Sequence[int]): Height and width of the result.
        samples (int): Samples per bin and axis; 0 for as many as the bin has pixels.
        aligned (bool): Whether pixels are points at their centers.

    Returns:
        Tensor: (R, C, height, width).
    """
    from mmcv.ops import roi_align

    out = features[0].new_zeros(len(boxes), features[0].shape[1], *size)
    rois = torch.cat([images[:, None].to(boxes), boxes], 1)
    for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
        here = levels == level
        if here.any():
            out[here] = roi_align(feature, rois[here], size, scale, samples, 'avg', aligned)
    return out


@roi_align.register_fake
def _(features: Sequence[Tensor], boxes: Tensor, *args: Any) -> Tensor:
    return features[0].new_empty(boxes.shape[0], features[0].shape[1], *args[3])


def translations() -> dict[Callable, Callable]:
    """Return functions that write these operators in ONNX's own; needs onnxscript."""
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
