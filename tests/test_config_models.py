"""The model of every config, built without weights: its parts fit and have the right sizes."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_mm.compat import revert_sync_bn
from xcit_mm.models import VARIANTS

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(p for d in ('detection', 'segmentation') for p in ROOT.glob(f'configs/{d}/*.py'))
# These have the model of another config, or its backbone and neck.
SHORT = [path for path in CONFIGS if path.stem.endswith('_1x')]
BOXES = [path for path in CONFIGS if re.fullmatch(r'faster_rcnn_xcit_(?!n12).*3x', path.stem)]
SIZE = (96, 160)
STRIDES = (4, 8, 16, 32)
# Classes by task and dataset; the background of the shapes is a class of the segmentors.
CLASSES = {
    'mmdet': {'shapes': 5, 'bccd': 3},
    'mmseg': {'shapes': 6, 'camvid': 11},
}


def shapes(tensors):
    return [tuple(tensor.shape[1:]) for tensor in tensors]


def levels(channels, strides):
    return [(channels, SIZE[0] // stride, SIZE[1] // stride) for stride in strides]


def stages(module):
    """The stages of a cascade, or the only stage."""
    return module if isinstance(module, nn.ModuleList) else [module]


def check_detector(model, features, classes):
    neck = model.neck(features)
    assert shapes(neck)[:4] == levels(model.neck.out_channels, STRIDES) and len(neck) == 5
    scores, boxes = model.rpn_head(neck)
    assert [score.shape[1] for score in scores] == [3] * 5
    assert [box.shape[1] for box in boxes] == [12] * 5
    for extractor, head in zip(
        stages(model.roi_head.bbox_roi_extractor), stages(model.roi_head.bbox_head), strict=True
    ):
        score, box = head(torch.empty(2, extractor.out_channels, 7, 7))
        coordinates = 4 if head.reg_class_agnostic else 4 * classes
        assert shapes([score, box]) == [(classes + 1,), (coordinates,)]
    if not model.with_mask:
        return
    for extractor, head in zip(
        stages(model.roi_head.mask_roi_extractor), stages(model.roi_head.mask_head), strict=True
    ):
        assert shapes([head(torch.empty(2, extractor.out_channels, 14, 14))]) == [(classes, 28, 28)]


def check_segmentor(model, features, classes):
    features = model.neck(features) if model.with_neck else features
    assert shapes([model.decode_head(features)]) == levels(classes, [4])
    if model.with_auxiliary_head:
        assert shapes([model.auxiliary_head(features)]) == levels(classes, [16])


def may_be_long(path):
    """With patch size 8, heads are those with 16, and 24 layers take twice as long."""
    return pytest.param(path, marks=[pytest.mark.long] * ('24_8' in path.stem), id=path.stem)


@pytest.mark.parametrize(
    'path', [may_be_long(path) for path in CONFIGS if path not in SHORT + BOXES]
)
def test_the_parts_of_every_model_fit(path):
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    classes, data = CLASSES[cfg.default_scope], path.stem.split('_')[-1]
    # With autograd on, the network runs without the in-place execution.
    with torch.device('meta'), torch.enable_grad():
        model = MODELS.build(cfg.model).eval()
        features = model.backbone(torch.empty(1, 3, *SIZE))
        assert shapes(features) == levels(model.backbone.embed_dims, STRIDES)
        if cfg.default_scope == 'mmdet':
            check_detector(model, features, classes.get(data, 80))
        else:
            check_segmentor(model, features, classes.get(data, 150))
    variant = VARIANTS[cfg.model.backbone.arch]
    assert model.backbone.embed_dims == variant.embed_dims
    assert len(model.backbone.layers) == variant.depth


@pytest.mark.parametrize('path', SHORT, ids=lambda path: path.stem)
def test_a_shorter_schedule_has_the_same_model(path):
    longer = path.with_name(path.name.replace('_1x', '_3x'))
    assert Config.fromfile(path).model == Config.fromfile(longer).model


@pytest.mark.parametrize('path', BOXES, ids=lambda path: path.stem)
def test_boxes_only_has_the_sizes_of_mask_rcnn(path):
    boxes = Config.fromfile(path).model
    masks = Config.fromfile(path.with_name(path.name.replace('faster', 'mask'))).model
    assert (boxes.backbone, boxes.neck) == (masks.backbone, masks.neck)
