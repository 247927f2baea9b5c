"""Whole models on a device that is not the CPU: every tensor is made where it belongs."""

import importlib
from types import SimpleNamespace
from typing import Union

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData, instance_data
from mmseg.structures import SegDataSample

from xcit_mm.compat import revert_sync_bn
from xcit_mm.models.fast import Execution, choose_execution, fingerprint

from .other_device import NAME, Elsewhere, move, other_device, reaching

SIZE = (64, 96)
CONFIGS = (
    'detection/mask_rcnn_xcit_n12_16_3x.py',
    'segmentation/sem_fpn_xcit_n12_16_80k.py',
    pytest.param('detection/cascade_mask_rcnn_xcit_s12_8_3x.py', marks=pytest.mark.long),
    pytest.param('segmentation/upernet_xcit_s12_8_160k.py', marks=pytest.mark.long),
)


def elsewhere(values, dtype=torch.float32):
    return Elsewhere(torch.as_tensor(values, dtype=dtype))


def detection_sample():
    sample = DetDataSample(metainfo=meta())
    masks = np.zeros((2, *SIZE), np.uint8)
    masks[0, 10:50, 10:60] = masks[1, 30:60, 50:90] = 1
    boxes = elsewhere([[10, 10, 60, 50], [50, 30, 90, 60]])
    sample.gt_instances = InstanceData(
        bboxes=boxes, labels=elsewhere([3, 0], torch.long), masks=BitmapMasks(masks, *SIZE)
    )
    return sample


def segmentation_sample():
    sample = SegDataSample(metainfo=meta())
    sample.gt_sem_seg = PixelData(data=elsewhere(np.indices(SIZE).sum(0)[None] % 150, torch.long))
    return sample


def meta():
    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    return dict.fromkeys(names, SIZE) | dict(scale_factor=(1, 1))


def test_lists_are_indices():
    values = torch.rand(4, 5)
    with other_device():
        assert torch.equal(Elsewhere(values)[:, [0, 2]].there, values[:, [0, 2]])


@pytest.fixture
def operators(monkeypatch):
    """mmcv's compiled operators and mmengine's types of indices know the tensors of the device."""
    types = Union[instance_data.IndexType, Elsewhere]  # noqa: UP007  its __args__ are read
    monkeypatch.setattr(instance_data, 'IndexType', types)
    for module in ('nms', 'roi_align'):
        module = importlib.import_module(f'mmcv.ops.{module}')
        functions = {n: reaching(f) for n, f in vars(module.ext_module).items() if callable(f)}
        monkeypatch.setattr(module, 'ext_module', SimpleNamespace(**functions))


@pytest.mark.parametrize('path', CONFIGS)
def test_loss_backward_and_prediction(path, operators, pytestconfig):
    cfg = Config.fromfile(pytestconfig.rootpath / 'configs' / path)
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    cfg.model.backbone.init_cfg = None
    model = move(MODELS.build(cfg.model))
    model.backbone.as_built = fingerprint(model.backbone)
    make = detection_sample if path.startswith('detection') else segmentation_sample
    images, samples = Elsewhere(torch.randn(2, 3, *SIZE)), [make(), make()]
    with other_device():
        losses = model.loss(images, samples)
        total = sum(sum(v) if isinstance(v, list) else v for k, v in losses.items() if 'loss' in k)
        total.backward()
        model.eval()
        with torch.no_grad():
            assert type(choose_execution(model.backbone)) is not Execution
            results = model.predict(images, samples)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.device.type == NAME, name
    assert all(p.grad is not None for p in model.backbone.parameters())
    assert torch.isfinite(total.there) and len(results) == 2
