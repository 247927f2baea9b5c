"""The graphs before they are exported: they compute what mmdet and mmseg compute."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from xcit_mm.deploy import check
from xcit_mm.deploy.export import Options, build_graph, output_names, preprocessing, task_of
from xcit_mm.deploy.fold import fold
from xcit_mm.deploy.graph import Backbone, window_average
from xcit_mm.models import XCiT

from .models import build, config, register_kernels

HEADS = ('faster_rcnn', 'mask_rcnn', 'cascade_mask_rcnn', 'sem_fpn', 'upernet')


@pytest.fixture(scope='module', autouse=True)
def kernels():
    library = register_kernels()
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def small_images(monkeypatch):
    monkeypatch.setattr(check, 'SIZES', ((1, 96, 128), (1, 75, 101), (2, 64, 96)))


def runner(model, options):
    """A function that runs the graph of a model in PyTorch."""
    task = task_of(model, options.backbone)
    graph = build_graph(model, task, preprocessing(model, options), options.labels)
    names = output_names(model, task, options.labels)

    def run(x):
        outputs = graph(torch.from_numpy(x))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return {name: out.numpy() for name, out in zip(names, outputs, strict=True)}

    return task, run


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('head', HEADS)
def test_graph_computes_what_the_model_computes(head, patch_size):
    model = build(config(head, patch_size))
    task, run = runner(model, Options())
    report = check.compare(model, run, task, None, ())
    assert report.passed, report
    if task == 'detection':
        assert min(case['detections'] for case in report.cases) > 5


@pytest.mark.parametrize('order', ['rgb', 'bgr'])
def test_raw_values_in_either_order(order):
    model = build(config('sem_fpn', 16))
    task, run = runner(model, Options(uint8=True, channel_order=order))
    assert check.compare(model, run, task, order, ()).passed
    other = 'bgr' if order == 'rgb' else 'rgb'
    assert not check.compare(model, run, task, other, ()).passed


def test_labels_of_a_segmentor():
    model = build(config('upernet', 16))
    task, run = runner(model, Options(labels=True))
    report = check.compare(model, run, task, None, ())
    assert report.passed and run(np.zeros((1, 3, 64, 96), np.float32))['labels'].dtype == np.uint8


def test_a_segmentor_that_pads_its_images():
    cfg = config('sem_fpn', 8)
    cfg.model.data_preprocessor.test_cfg = dict(size_divisor=32)
    model = build(cfg)
    task, run = runner(model, Options())
    assert check.compare(model, run, task, None, ()).passed


def test_images_with_fewer_detections_are_padded():
    model = build(config('mask_rcnn', 16))
    images = check.file_input(model.data_preprocessor, list(check.draw_images((), 3))[2], None)
    _, run = runner(model, Options())
    best = run(images)['scores'].max(1)
    # Only one image has detections that score above this.
    model.roi_head.test_cfg.score_thr = float(best.mean())
    _, run = runner(model, Options())
    outputs = run(images)
    missing = outputs['labels'] < 0
    assert missing.all(1).tolist() == (best < best.mean()).tolist() and not missing.all()
    assert not any(outputs[name][missing].any() for name in ('boxes', 'scores', 'masks'))


def test_folded_backbone_without_biases_or_pyramid():
    settings = dict(arch=dict(embed_dims=16, depth=2, num_heads=2), qkv_bias=False)
    model = XCiT(**settings, patch_size=16, pyramid=False, out_indices=(0, 1)).eval()
    folded = copy.deepcopy(model)
    fold(folded)
    x = torch.rand(1, 3, 75, 90)
    with torch.no_grad():
        for ours, theirs in zip(Backbone(folded)(x), model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_fold_leaves_only_the_norms_before_padded_convolutions():
    model = build(config('sem_fpn', 16))
    fold(model)
    left = [name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(left) == 4 and all(name.endswith('lpi.norm') for name in left)


@pytest.mark.parametrize('length', [1, 5, 6, 13])
@pytest.mark.parametrize('bins', [1, 2, 3, 6])
def test_average_pooling_as_a_product(length, bins):
    x = torch.rand(2, length)
    expected = nn.functional.adaptive_avg_pool1d(x[None], bins)[0]
    torch.testing.assert_close(x @ window_average(length, bins, x).mT, expected)
