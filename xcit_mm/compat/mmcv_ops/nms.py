"""Non-maximum suppression: hard by torchvision, soft in plain PyTorch."""

import torch
from torch import Tensor

from .common import upcast_half

# What mmcv calls the ways to lower a score.
NAIVE, LINEAR, GAUSSIAN = range(3)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Keep the best of boxes that overlap.

    Args:
        boxes (Tensor): (N, 4), as x1, y1, x2, y2.
        scores (Tensor): (N,).
        iou_threshold (float): Of two boxes that overlap more, the better one is kept.
        offset (int): A box is x2 - x1 + offset wide.

    Returns:
        Tensor: The indices of the kept boxes, best first.
    """
    boxes = _with_offset(upcast_half(boxes), offset)
    # mmcv compares in float32. In torchvision's float64, 0.3 is less than an IoU of 3 / 10.
    threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    return torch.ops.torchvision.nms(boxes, upcast_half(scores), threshold)


def _with_offset(boxes: Tensor, offset: int) -> Tensor:
    """Return boxes that are x2 - x1 wide."""
    return boxes + boxes.new_tensor([0, 0, offset, offset]) if offset else boxes


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Lower the scores of boxes that overlap better ones (arXiv 1704.04503).

    Args:
        boxes (Tensor): (N, 4), as x1, y1, x2, y2.
        scores (Tensor): (N,).
        dets (Tensor): (N, 5). Its first rows are set to the remaining boxes and their new scores.
        iou_threshold (float): IoU threshold for decay; ignored by the Gaussian method.
        sigma (float): The width of the Gaussian.
        min_score (float): Boxes whose score falls below it are dropped.
        method (int): 0 is naive, 1 is linear, 2 is Gaussian.
        offset (int): A box is x2 - x1 + offset wide.

    Returns:
        Tensor: The indices of the remaining boxes, best first.
    """
    edges = _with_offset(boxes, offset)
    order, scores = torch.arange(len(boxes)), scores.clone()
    count = 0
    while count < len(order):
        best = count + int(scores[count:].argmax())
        for values in (order, scores):
            values[[count, best]] = values[[best, count]]
        count += 1
        overlap = _iou(edges[order[count - 1]], edges[order[count:]])
        scores[count:] *= _decay(overlap, iou_threshold, sigma, method)
        keep = torch.cat([torch.ones(count, dtype=torch.bool), scores[count:] >= min_score])
        order, scores = _drop(order, keep), _drop(scores, keep)
    dets[:count, :4], dets[:count, 4] = boxes[order], scores
    return order


def _iou(box: Tensor, others: Tensor) -> Tensor:
    size = (torch.min(box[2:], others[:, 2:]) - torch.max(box[:2], others[:, :2])).clamp(min=0)
    common = size.prod(1)
    return common / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - common)


def _decay(overlap: Tensor, iou_threshold: float, sigma: float, method: int) -> Tensor:
    if method == GAUSSIAN:
        return (-(overlap * overlap) / sigma).exp()
    lowered = 1 - overlap if method == LINEAR else torch.zeros_like(overlap)
    return torch.where(overlap >= iou_threshold, lowered, 1)


def _drop(values: Tensor, keep: Tensor) -> Tensor:
    """Return the kept values, in mmcv's order: each gap is filled from the end.

    The order decides between equal scores.
    """
    count = int(keep.sum())
    kept = values[:count].clone()
    kept[~keep[:count]] = values[count:][keep[count:]].flip(0)
    return kept
