"""Tiny models whose scores spread as those of trained models do, and kernels to run their graphs.

Random heads give every box the same score, up to rounding: then rounding decides what is found.
"""

import torch
from mmcv.ops import nms, roi_align
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_mm.compat import revert_sync_bn
from xcit_mm.deploy.operators import NONE

from ..tiny import recipe, write_recipe


def faster(cfg):
    """Leave out the masks: Faster R-CNN."""
    cfg.model.type = 'FasterRCNN'
    for key in [key for key in cfg.model.roi_head if key.startswith('mask_')]:
        del cfg.model.roi_head[key]
    return cfg


def config(head, patch_size):
    """The config of a tiny model; like Mask R-CNN, with ``faster_rcnn`` too."""
    if head == 'faster_rcnn':
        return faster(recipe('mask_rcnn', patch_size))
    return recipe(head, patch_size)


def build(cfg):
    """A model with random weights and statistics, in eval mode."""
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    model = MODELS.build(cfg.model)
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
        elif name.endswith(('fc_reg', 'rpn_reg')):
            nn.init.normal_(module.weight, 0, 0.3)
        elif name.endswith(('rpn_cls', 'fc_cls', 'conv_logits')):
            nn.init.normal_(module.weight, 0, 0.3)
            nn.init.normal_(module.bias, 0, 1)
    for layer in model.backbone.layers:
        for gamma in (layer.gamma1, layer.gamma2, layer.gamma3):
            nn.init.normal_(gamma, 0.5, 0.3)
    return model.eval()


def write(folder, head, patch_size):
    """Write the config and the weights of a tiny model; returns both paths, and the model."""
    path = write_recipe(folder, head, patch_size, 'data')
    model = build(recipe(head, patch_size))
    checkpoint = folder / 'weights.pth'
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, checkpoint)
    return path, checkpoint, model


def register_kernels():
    """Let PyTorch compute the operators of detectors with mmcv's, so that graphs run as they are.

    The graph is then tested apart from the exporter, which takes much longer.
    """
    library = torch.library.Library('xcit_mm', 'IMPL')
    library.impl('suppress', _suppress, 'CPU')
    library.impl('roi_align', _roi_align, 'CPU')
    return library


def _suppress(boxes, scores, iou_threshold, score_threshold, limit):
    kept = torch.full_like(scores, NONE)
    for i in range(len(boxes)):
        (places,) = torch.where(scores[i] > score_threshold)
        if len(places):
            best = nms(boxes[i, places], scores[i, places], iou_threshold)[1][:limit]
            kept[i, places[best]] = scores[i, places[best]]
    return kept


def _roi_align(features, boxes, images, levels, scales, size, samples, aligned):
    out = features[0].new_zeros(len(boxes), features[0].shape[1], *size)
    rois = torch.cat([images[:, None].to(boxes), boxes], 1)
    for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
        here = levels == level
        if here.any():
            out[here] = roi_align(feature, rois[here], size, scale, samples, 'avg', aligned)
    return out
