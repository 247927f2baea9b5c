"""The graphs before they are exported: they compute what mmdet and mmseg compute."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from xcit_mm.deploy import check
from xcit_mm.deploy.export import build_graph
from xcit_mm.deploy.fold import fold
from xcit_mm.deploy.graph import Backbone, window_average
from xcit_mm.deploy.metadata import Options, describe
from xcit_mm.models import XCiT
from xcit_mm_runtime import Model

from ..tiny import HEADS, build, recipe


@pytest.fixture(autouse=True)
def small_images(monkeypatch):
    monkeypatch.setattr(check, 'SIZES', ((1, 96, 128), (1, 75, 101), (2, 64, 96)))


def exported(cfg, model, **options):
    """The graph of a model, run by PyTorch: the exporter takes much longer."""
    options = Options(**options)
    graph = build_graph(model, options)

    def run(planes):
        outputs = graph(torch.from_numpy(planes))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        values = (output.numpy() for output in outputs)
        return dict(zip(graph.output_names, values, strict=True))

    return Model(run, describe(cfg, model, options, 'tiny', 'random'), Path('tiny.onnx'))


def compare(head, patch_size=16, *, changes=(), **options):
    """Compare a tiny model with its graph."""
    cfg = recipe(head, patch_size)
    cfg.merge_from_dict(dict(changes))
    model = build(cfg)
    return check.compare(model, exported(cfg, model, **options))


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('head', HEADS)
def test_graph_computes_what_the_model_computes(head, patch_size):
    report = compare(head, patch_size)
    assert report.passed, report
    if 'rcnn' in head:
        assert min(case['detections'] for case in report.cases) > 5


@pytest.mark.parametrize('options', [
    dict(uint8=True, channel_order='rgb'),
    dict(uint8=True, channel_order='bgr'),
    dict(labels=True),
    dict(backbone=True),
    dict(changes={'model.data_preprocessor.test_cfg': dict(size_divisor=32)}),
], ids=str)  # fmt: skip
def test_options(options):
    assert compare('sem_fpn', **options).passed


def test_channels_in_the_wrong_order_are_noticed():
    cfg = recipe('sem_fpn', 16)
    model = build(cfg)
    graph = exported(cfg, model, uint8=True)
    graph.metadata.input['channel_order'] = 'bgr'
    assert not check.compare(model, graph).passed


def test_images_with_fewer_detections_are_padded():
    cfg = recipe('mask_rcnn', 16)
    model, images = build(cfg), list(check.draw_images((), 3))[2]
    best = exported(cfg, model).run_batch(images)['scores'].max(1)
    # Only one image has detections that score above this.
    model.roi_head.test_cfg.score_thr = float(best.mean())
    outputs = exported(cfg, model).run_batch(images)
    missing = outputs['labels'] < 0
    assert missing.all(1).tolist() == (best < best.mean()).tolist() and not missing.all()
    assert not any(outputs[name][missing].any() for name in ('boxes', 'scores', 'masks'))


def test_a_missing_or_moved_detection_is_noticed():
    allowed = check.TOLERANCES['float32']
    found = dict(
        boxes=np.array([[0, 0, 10, 10], [5, 5, 20, 20.0]]),
        scores=np.array([0.9, 0.8]),
        labels=np.array([1, 2]),
    )
    assert check.match(found, found, 100, allowed) == [(0, 0), (1, 1)]
    swapped = {name: value[::-1] for name, value in found.items()}
    assert check.match(found, swapped, 100, allowed) == [(0, 1), (1, 0)]
    for name, change in (('boxes', 0.1), ('scores', 0.01), ('labels', 1)):
        assert check.match(found, {**found, name: found[name] + change}, 100, allowed) == []
    # One box cannot be the partner of two.
    twice = {name: value[[0, 0]] for name, value in found.items()}
    assert check.match(found, twice, 100, allowed) == [(0, 0)]
    nothing = {name: value[:0] for name, value in found.items()}
    assert (
        check.match(found, nothing, 100, allowed) == check.match(nothing, found, 9, allowed) == []
    )


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
    model = build(recipe('sem_fpn', 16))
    fold(model)
    norms = nn.modules.batchnorm._BatchNorm
    left = [name for name, m in model.named_modules() if isinstance(m, norms)]
    assert len(left) == 4 and all(name.endswith('lpi.norm') for name in left)


@pytest.mark.parametrize('length', [1, 5, 6, 13])
@pytest.mark.parametrize('bins', [1, 2, 3, 6])
def test_average_pooling_as_a_product(length, bins):
    x = torch.rand(2, length)
    expected = nn.functional.adaptive_avg_pool1d(x[None], bins)[0]
    torch.testing.assert_close(x @ window_average(length, bins, x).mT, expected)
