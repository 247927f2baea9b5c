"""XCiT in other people's models: the installed libraries' configs with the backbone replaced."""

import copy
import faulthandler
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from dev.deploy_benchmark import save_random_weights
from dev.other_models import BASES, CHANGES, batch_for, load, try_model
from tests.weights.test_formats import to_released
from xcit_mm.compat import revert_sync_bn
from xcit_mm.inference import load_predictor

from .tiny import HEADS, check_inputs, recipe, write_config

# The whole list takes minutes: the others are tried in long runs.
CHEAP = ('RetinaNet', 'FCOS', 'RTMDet', 'YOLOX', 'DETR', 'Faster R-CNN', 'SegFormer', 'PSPNet')


@pytest.mark.parametrize(
    'base',
    [
        pytest.param(base, marks=[] if name in CHEAP else pytest.mark.long)
        for base, (_, name) in BASES.items()
    ],
)
def test_other_models_train_and_predict(base):
    cfg = load(base)
    check_inputs(cfg)
    check_optimizer(cfg)
    predictions = try_model(cfg)
    assert len(predictions) == 2
    if base.startswith('mmseg'):
        assert predictions[0].pred_sem_seg.data.shape[-2:] == (128, 128)
    else:
        assert {'pred_instances', 'pred_panoptic_seg'} & {*predictions[0].keys()}


def check_optimizer(cfg):
    """Check that the backbone is trained with AdamW, at a rate that suits it and decreases."""
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(copy.deepcopy(cfg.model))  # mmdet's classes change their settings
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    assert isinstance(wrapper.optimizer, torch.optim.AdamW)
    stem = next(model.backbone.parameters())
    (rate,) = [g['lr'] for g in wrapper.param_groups if any(p is stem for p in g['params'])]
    assert 1e-5 <= rate <= 1e-4
    rules = cfg.param_scheduler
    for rule in rules if isinstance(rules, list) else [rules]:
        assert rule.get('eta_min', 0) < cfg.optim_wrapper.optimizer.lr / 10


def test_mmdets_script_counts_operations(small_data, tmp_path, monkeypatch, capsys):
    script = Path(__import__('mmdet').__file__).parent / '.mim/tools/analysis_tools/get_flops.py'
    config = write_config(tmp_path, 'det', small_data)
    monkeypatch.setattr(sys, 'argv', [str(script), str(config), '--num-images', '1'])
    runpy.run_path(str(script), run_name='__main__')
    count = sum(p.numel() for p in MODELS.build(Config.fromfile(config).model).parameters())
    text = capsys.readouterr().out
    assert f'Params: {count / 1e3:.3f}K' in text
    assert re.search(r'Flops: [\d.]+[MG]', text)


@pytest.mark.parametrize('name', ['RetinaNet', 'FCOS', 'RTMDet', 'YOLOX'])
def test_heads_place_their_anchors_where_the_levels_are(name):
    """A wrong stride would train without an error."""
    (base,) = [change.bases[name] for change in CHANGES if name in change.bases]
    cfg = load(base)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        levels = model.extract_feat(torch.randn(1, 3, 256, 256))
    strides = [stride[0] for stride in model.bbox_head.prior_generator.strides]
    assert [256 // level.shape[-1] for level in levels] == strides


RECIPES = [(head, patch_size) for head in HEADS for patch_size in (16, 8)]


@pytest.mark.parametrize('head, patch_size', RECIPES)
def test_released_checkpoint_loads_with_nothing_missing_and_nothing_left_over(
    head, patch_size, tmp_path
):
    cfg = recipe(head, patch_size)
    init_default_scope(cfg.default_scope)
    source, target = (MODELS.build(cfg.model) for _ in range(2))
    state = source.state_dict()
    backbone = {k[9:]: v for k, v in state.items() if k.startswith('backbone.')}
    released = {f'backbone.{k}': v for k, v in to_released(backbone).items()}
    released |= {k: v for k, v in state.items() if not k.startswith('backbone.')}
    assert len(released) == len(state)
    path = tmp_path / 'released.pth'
    torch.save(dict(meta=dict(CLASSES=('a', 'b')), state_dict=released), path)
    load_checkpoint(target, str(path), strict=True)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize('head, patch_size', RECIPES)
def test_our_configs_give_every_parameter_a_gradient(head, patch_size):
    cfg = recipe(head, patch_size)
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (128, 128)
    model = MODELS.build(cfg.model).train()
    losses = model(**model.data_preprocessor(batch_for(cfg), training=True), mode='loss')
    model.parse_losses(losses)[0].backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@pytest.fixture
def bounded_time():
    """End the run with a stack trace if it hangs."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


SHAPES = (
    'detection/mask_rcnn_xcit_n12_8_shapes.py',
    'segmentation/sem_fpn_xcit_n12_8_shapes.py',
    'segmentation/upernet_xcit_n12_8_shapes.py',
)


@pytest.mark.parametrize('config', SHAPES)
def test_predictors_survive_spoilt_images(config, tmp_path, bounded_time):
    """They return no detections, or the first class everywhere; later images are not affected."""
    cfg = get_config(f'xcit_mm::{config}')
    checkpoint = save_random_weights(cfg, tmp_path / 'random.pth')
    predictor = load_predictor(cfg, str(checkpoint), 'cpu')
    image = np.random.default_rng(0).integers(0, 256, (72, 96, 3)).astype(np.float32)
    expected = outcome(predictor, image)
    assert len(np.unique(expected)) > 1
    for value in (np.nan, np.inf, -np.inf, 1e30):
        one_pixel, all_pixels = image.copy(), np.full_like(image, value)
        one_pixel[10, 20] = value
        for spoilt in (one_pixel, all_pixels):
            assert not outcome(predictor, spoilt).any()
    assert (outcome(predictor, image) == expected).all()


def outcome(predictor, image):
    """The boxes, or the label of every pixel."""
    found = predictor(image)
    return found.boxes if predictor.task == 'detection' else found.labels
