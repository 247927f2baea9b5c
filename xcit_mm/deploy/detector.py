"""Two-stage detectors as graphs: Faster, Mask and Cascade Mask R-CNN.

The steps are mmdet's. Where it loops over images and keeps lists of boxes, here each image of a
batch has the same number of boxes, and those that an image lacks have the score
:data:`.operators.NONE`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..models.fast import assume
from .graph import Backbone, Input
from .metadata import Options
from .operators import NONE, roi_align, suppress


class Boxes(NamedTuple):
    """Boxes (B, K, 4) and their scores (B, K)."""

    boxes: Tensor
    scores: Tensor


class Detector(nn.Module):
    """Images to boxes (B, D, 4), scores (B, D), labels (B, D) and, with masks, (B, D, h, w).

    D is the largest number of detections in an image of the batch. An image with fewer has boxes
    with the score 0 and the label -1 at the end.

    Args:
        model (nn.Module): An mmdet detector, already folded.
        options (Options): What the user asks for.
    """

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__()
        masks = ['masks'] if model.roi_head.with_mask else []
        self.output_names = ['boxes', 'scores', 'labels', *masks]
        self.input = Input(model, options)
        self.backbone = Backbone(model.backbone)
        self.neck = model.neck if model.with_neck else nn.Identity()
        self.rpn_head, self.roi_head = model.rpn_head, model.roi_head
        self.num_stages = getattr(self.roi_head, 'num_stages', 1)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        size = (image.shape[2], image.shape[3])
        features = self.neck(self.backbone(self.input(image)))
        proposals = propose(self.rpn_head, features, size)
        found, labels = self.classify(features, proposals, size)
        exists = found.scores > NONE
        scores = torch.where(exists, found.scores, 0.0)
        boxes = torch.where(exists[..., None], found.boxes, 0.0)
        outputs = (boxes, scores, torch.where(exists, labels, -1))
        if not self.roi_head.with_mask:
            return outputs
        return *outputs, self.masks(features, found.boxes, labels) * exists[..., None, None]

    def classify(
        self, features: tuple[Tensor, ...], proposals: Boxes, size: tuple[int, int]
    ) -> tuple[Boxes, Tensor]:
        """Return the detections, best first, and their labels (B, D)."""
        boxes, logits = proposals.boxes, []
        for stage in range(self.num_stages):
            head = stage_of(self.roi_head.bbox_head, stage)
            extractor = stage_of(self.roi_head.bbox_roi_extractor, stage)
            logit, delta = head(extract(extractor, features, boxes))
            logits.append(logit.unflatten(0, boxes.shape[:2]))
            delta = delta.unflatten(0, boxes.shape[:2]).unflatten(2, (-1, 4))
            if stage < self.num_stages - 1:
                best = logits[-1][..., :-1].argmax(-1) * (0 if head.reg_class_agnostic else 1)
                delta = delta.gather(2, best[..., None, None].expand(-1, -1, 1, 4))
                boxes = decode(head.bbox_coder, boxes, delta[:, :, 0], size)
        boxes = decode(head.bbox_coder, boxes[:, :, None], delta, size)  # (B, K, 1 or classes, 4)
        scores = (sum(logits) / len(logits)).softmax(-1)[..., :-1]
        scores = torch.where((proposals.scores > NONE)[..., None], scores, NONE)
        return best_per_class(boxes, scores, self.roi_head.test_cfg)

    def masks(self, features: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
        """Return probabilities of the predicted class inside each box, (B, D, h, w)."""
        probabilities = []
        for stage in range(self.num_stages):
            head = stage_of(self.roi_head.mask_head, stage)
            extractor = stage_of(self.roi_head.mask_roi_extractor, stage)
            logits = head(extract(extractor, features, boxes))
            index = torch.zeros_like(labels) if head.class_agnostic else labels
            index = index.reshape(-1, 1, 1, 1).expand(-1, -1, *logits.shape[2:])
            probabilities.append(logits.gather(1, index)[:, 0].sigmoid())
        mean = torch.stack(probabilities).mean(0) if self.num_stages > 1 else probabilities[0]
        return mean.unflatten(0, boxes.shape[:2])


def stage_of(part: Any, stage: int) -> Any:
    """Return a part of the head, which in a cascade has one per stage."""
    return part[stage] if isinstance(part, nn.ModuleList) else part


def propose(head: Any, features: tuple[Tensor, ...], size: tuple[int, int]) -> Boxes:
    """Return the region proposals, best first, as RPNHead.predict gives them."""
    cfg, levels = head.test_cfg, []
    for i, (logit, delta) in enumerate(zip(*head(features), strict=True)):
        grid = (logit.shape[2], logit.shape[3])
        anchors = head.prior_generator.single_level_grid_priors(
            grid, i, dtype=logit.dtype, device=logit.device
        )
        logit = logit.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, head.cls_out_channels))
        scores = logit[..., 0].sigmoid() if head.use_sigmoid_cls else logit.softmax(-1)[..., 0]
        delta = delta.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))
        if cfg.get('nms_pre', -1) > 0:
            scores, index = scores.topk(torch.sym_min(cfg.nms_pre, scores.shape[1]))
            delta, anchors = take(delta, index), anchors[index]
        boxes = decode(head.bbox_coder, anchors, delta, size)
        if cfg.get('min_bbox_size', -1) >= 0:
            extent = boxes[..., 2:] - boxes[..., :2]
            scores = torch.where((extent > cfg.min_bbox_size).all(-1), scores, NONE)
        scores = suppress(boxes, scores, cfg.nms.iou_threshold, NONE / 2, cfg.max_per_img)
        levels.append(Boxes(boxes, scores))
    boxes, scores = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
    scores, index = best_of(scores, cfg.max_per_img)
    return Boxes(take(boxes, index), scores)


def best_per_class(boxes: Tensor, scores: Tensor, cfg: Any) -> tuple[Boxes, Tensor]:
    """Return what multiclass_nms keeps of boxes (B, K, 1 or classes, 4), and their labels."""
    classes = scores.shape[2]
    sets = boxes.transpose(1, 2).expand(-1, classes, -1, -1).flatten(0, 1)
    kept = suppress(
        sets,
        scores.transpose(1, 2).flatten(0, 1),
        cfg.nms.iou_threshold,
        cfg.score_thr,
        cfg.max_per_img,
    )
    kept = kept.unflatten(0, (-1, classes)).transpose(1, 2).flatten(1)
    kept, index = best_of(kept, cfg.max_per_img)
    place = index // classes if boxes.shape[2] == 1 else index
    return Boxes(take(boxes.flatten(1, 2), place), kept), index % classes


def best_of(scores: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Return the best scores (B, K) and their positions; K is that of the image with most boxes.

    Args:
        scores (Tensor): (B, N), with :data:`NONE` for boxes that are not there.
        limit (int): K is at most this.
    """
    count = (scores > NONE).sum(1).amax(0).clamp(max=limit).item()
    assume(count >= 0)
    assume(count <= scores.shape[1])
    return scores.topk(count)  # type: ignore[arg-type]


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows at positions (B, K) of (B, N, 4)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[2]))


def extract(extractor: Any, features: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """Return the features (B K, C, h, w) of boxes (B, K, 4), each from the level for its size."""
    features = features[: extractor.num_inputs]
    layer = extractor.roi_layers[0]
    count = boxes.shape[0] * boxes.shape[1]
    images = torch.arange(boxes.shape[0], device=boxes.device)[:, None].expand(boxes.shape[:2])
    boxes = boxes.reshape(count, 4)
    scale = (boxes[:, 2:] - boxes[:, :2]).prod(1).sqrt()
    levels = (scale / extractor.finest_scale + 1e-6).log2().floor()
    levels = levels.clamp(0, len(features) - 1).to(torch.int64)
    scales = [float(layer.spatial_scale) for layer in extractor.roi_layers]
    size, samples = layer.output_size, layer.sampling_ratio
    return roi_align(
        features, boxes, images.reshape(count), levels, scales, size, samples, layer.aligned
    )


def decode(coder: Any, boxes: Tensor, delta: Tensor, size: tuple[int, int]) -> Tensor:
    """Move boxes by what the network says, as DeltaXYWHBBoxCoder does.

    Args:
        coder (DeltaXYWHBBoxCoder): Its settings.
        boxes (Tensor): (..., 4).
        delta (Tensor): (..., 4).
        size (tuple[int, int]): Height and width of the image, to which boxes are clipped.
    """
    delta = delta * delta.new_tensor(coder.stds) + delta.new_tensor(coder.means)
    extent = boxes[..., 2:] - boxes[..., :2]
    center = (boxes[..., :2] + boxes[..., 2:]) * 0.5 + extent * delta[..., :2]
    limit = abs(math.log(16 / 1000))  # mmdet's default, which its heads never change
    half = extent * delta[..., 2:].clamp(-limit, limit).exp() * 0.5
    moved = torch.cat([center - half, center + half], -1)
    if not coder.clip_border:
        return moved
    height, width = size
    x, y = moved[..., 0::2].clamp(0, width), moved[..., 1::2].clamp(0, height)
    return torch.stack([x, y], -1).flatten(-2)
