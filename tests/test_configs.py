"""Every config matches its name, and the recipes are the paper's."""

import re
from fnmatch import fnmatch
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from mmengine.utils import get_installed_path
from torch import nn

from dev.zoo import metafiles, page
from xcit_mm.configs import nested_dicts
from xcit_mm.models import VARIANTS
from xcit_mm.stats import heads_table

from .tiny import check_survives_faults
from .weights.test_formats import to_released

ROOT = Path(__file__).parents[1]
CONFIGS = [p for d in ('detection', 'segmentation') for p in (ROOT / 'configs' / d).glob('*.py')]
SMALL_DATA = ('_shapes', '_bccd', '_camvid')
# Head -> the lengths of its schedules, in epochs or iterations.
SCHEDULES = {
    'mask_rcnn': {'1x': 12, '3x': 36},
    'faster_rcnn': {'1x': 12, '3x': 36},
    'cascade_mask_rcnn': {'3x': 36},
    'sem_fpn': {'80k': 80_000},
    'upernet': {'160k': 160_000},
}
DETECTION = ROOT / 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
CASCADE = ROOT / 'configs/detection/cascade_mask_rcnn_xcit_n12_8_3x.py'
SEM_FPN = ROOT / 'configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
UPERNET = ROOT / 'configs/segmentation/upernet_xcit_n12_8_160k.py'


def test_every_size_and_head_has_a_config():
    wanted = {
        f'{head}_xcit_{arch}_{patch_size}_{schedule}'
        for head, schedules in SCHEDULES.items()
        for schedule in schedules
        for arch in VARIANTS
        for patch_size in (16, 8)
    }
    assert {p.stem for p in CONFIGS if not p.stem.endswith(SMALL_DATA)} == wanted
    assert len(wanted) == 98


@pytest.mark.parametrize('path', sorted(CONFIGS), ids=lambda p: p.stem)
def test_config_matches_its_name_and_survives_faults(path):
    cfg = Config.fromfile(path)
    check_survives_faults(cfg)
    if path.stem.endswith(SMALL_DATA):
        return
    head, _, rest = path.stem.partition('_xcit_')
    arch, patch, schedule = rest.split('_')
    backbone = cfg.model.backbone
    assert (backbone.arch, backbone.patch_size) == (arch, int(patch))
    assert backbone.init_cfg == dict(type='Pretrained', checkpoint=f'xcit://{arch}/{patch}')
    # The paper's, by arch, except where a released config differs from the paper.
    rate = 0.2 if (head, arch) == ('sem_fpn', 'm24') else None
    assert backbone.get('drop_path_rate') == rate
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=16)
    assert cfg.train_dataloader.batch_size == 2
    detector = cfg.default_scope == 'mmdet'
    assert cfg.optim_wrapper.type == ('CudaAmpOptimWrapper' if detector else 'OptimWrapper')
    length = cfg.train_cfg.max_epochs if detector else cfg.train_cfg.max_iters
    assert length == SCHEDULES[head][schedule]
    assert detector or cfg.model.decode_head.num_classes == 150


def test_parameters_are_the_papers_in_24_of_24_cells():
    rows = heads_table()
    assert len(rows) == 24 and all(row['agree'] == 'yes' for row in rows)


def names_in_the_authors_network(patch_size):
    """The names of the tensors that the authors' network computed for the golden tests."""
    file = {16: 'dense_p16_64x96.npz', 8: 'dense_p8_45x61.npz'}[patch_size]
    names = np.load(ROOT / 'tests/data' / file).files
    return {n.removeprefix('state/') for n in names if n.startswith('state/')}


@pytest.mark.parametrize('path', [DETECTION, CASCADE, SEM_FPN, UPERNET], ids=lambda p: p.stem)
def test_weight_decay_is_that_of_the_released_configs(path):
    """They exempt the parameters whose released name contains ``norm``, and no others."""
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {id(g['params'][0]): g['weight_decay'] for g in wrapper.optimizer.param_groups}
    base = 0.05 if cfg.default_scope == 'mmdet' else 0.01
    # Necks and heads are mmdet's and mmseg's own, under the same names in both.
    released = to_released(dict(model.backbone.named_parameters()))
    authors = names_in_the_authors_network(cfg.model.backbone.patch_size)
    assert {re.sub(r'^blocks\.\d+', 'blocks.0', name) for name in released} <= authors
    others = {n: p for n, p in model.named_parameters() if not n.startswith('backbone.')}
    for name, parameter in (released | others).items():
        assert decay[id(parameter)] == (0.0 if 'norm' in name else base), name
    assert sum('norm' in name for name in released) == 12 * 3 * 2  # LayerNorms: weight and bias
    batch_norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert batch_norms and all(decay[id(m.weight)] == base for m in batch_norms)
    defaults = wrapper.optimizer.defaults
    assert defaults['betas'] == (0.9, 0.999)
    assert defaults['lr'] == (1e-4 if cfg.default_scope == 'mmdet' else 6e-5)


def learning_rates(cfg, length, epochs):
    """The learning rate of every iteration, stepped as mmengine's hook steps it."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=cfg.optim_wrapper.optimizer.lr)
    init_default_scope(cfg.default_scope)
    schedulers = [
        PARAM_SCHEDULERS.build(dict(s), default_args=dict(optimizer=optimizer))
        for s in cfg.param_scheduler
    ]
    rates = []
    for _ in range(epochs):
        for _ in range(length):
            rates.append(optimizer.param_groups[0]['lr'])
            for scheduler in schedulers:
                if not scheduler.by_epoch:
                    scheduler.step()
        for scheduler in schedulers:
            if scheduler.by_epoch:
                scheduler.step()
    return rates


@pytest.mark.parametrize(
    'path, length, epochs, expected',
    [
        (
            DETECTION,
            1000,
            36,
            {0: 1e-7, 500: 1e-4, 26_999: 1e-4, 27_000: 1e-5, 32_999: 1e-5, 33_000: 1e-6},
        ),
        (DETECTION.with_stem('mask_rcnn_xcit_n12_16_1x'), 1000, 12, {8000: 1e-5, 11_000: 1e-6}),
        (SEM_FPN, 80_000, 1, {0: 6e-11, 1500: 6e-5, 40_750: 3e-5}),
        (UPERNET, 160_000, 1, {0: 6e-11, 1500: 6e-5, 80_750: 3e-5}),
    ],
)
def test_learning_rate(path, length, epochs, expected):
    rates = learning_rates(Config.fromfile(path), length, epochs)
    assert {i: rates[i] for i in expected} == pytest.approx(expected, rel=1e-3)
    assert max(rates) == pytest.approx(6e-5 if epochs == 1 else 1e-4, rel=1e-3)
    assert epochs > 1 or rates[-1] < 2e-9


def test_augmentation_of_detection_has_the_recipes_sizes(tmp_path):
    cfg = Config.fromfile(DETECTION)
    init_default_scope('mmdet')
    pipeline = Compose(cfg.train_pipeline)
    path = tmp_path / 'image.jpg'
    cv2.imwrite(str(path), np.zeros((480, 640, 3), np.uint8))
    polygon = [[100.0, 100, 300, 100, 300, 300, 100, 300]]
    instance = dict(bbox=[100, 100, 300, 300], bbox_label=0, mask=polygon, ignore_flag=0)
    shapes = []
    for _ in range(150):
        data = dict(img_path=str(path), height=480, width=640, instances=[instance])
        shapes.append(pipeline(data)['inputs'].shape[1:])
    sides = set(range(480, 801, 32))
    assert all(min(s) in sides or max(s) >= 1332 for s in shapes)
    assert max(max(s) for s in shapes) <= 1333
    cropped = sum(abs(s[1] / s[0] - 4 / 3) > 0.02 for s in shapes)
    assert 40 < cropped < 110  # one of two ways, at random
    assert len({min(s) for s in shapes}) >= 10


def test_boxes_only_leaves_out_the_masks_and_nothing_else():
    masks = Config.fromfile(DETECTION)
    boxes = Config.fromfile(DETECTION.with_name('faster_rcnn_xcit_n12_16_3x.py'))
    assert boxes.model.type == 'FasterRCNN' and 'mask' not in str(boxes.model)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        (load,) = [step for step in masks[loader].dataset.pipeline if 'with_mask' in step]
        del load['with_mask']
        for node in nested_dicts([boxes[loader], masks[loader]]):
            node.pop('_scope_', None)
        assert boxes[loader] == masks[loader]
    assert boxes.val_evaluator.metric == boxes.test_evaluator.metric == 'bbox'
    for part in ('optim_wrapper', 'param_scheduler', 'train_cfg', 'default_hooks'):
        assert boxes[part] == masks[part]


def test_heads_and_sizes_are_the_recipes():
    cfg = Config.fromfile(DETECTION)
    assert cfg.test_pipeline[1].scale == (1333, 800)
    assert cfg.model.data_preprocessor.pad_size_divisor == 32
    cfg = Config.fromfile(SEM_FPN.with_stem('sem_fpn_xcit_s12_8_80k'))
    assert cfg.model.neck.out_channels == 384 and cfg.model.decode_head.channels == 128
    cfg = Config.fromfile(UPERNET)
    assert cfg.model.decode_head.channels == 512
    auxiliary = cfg.model.auxiliary_head
    assert (auxiliary.channels, auxiliary.in_index) == (256, 2)
    assert auxiliary.loss_decode.loss_weight == 0.4
    assert cfg.model.test_cfg.mode == 'whole'
    crop = cfg.train_pipeline[3]
    assert crop.crop_size == (512, 512) and crop.cat_max_ratio == 0.75
    assert cfg.train_pipeline[2].ratio_range == (0.5, 2.0)


def test_metafiles_and_zoo_page_are_up_to_date():
    for path, text in {**metafiles(), 'docs/model_zoo.md': page()}.items():
        assert (ROOT / path).read_text(encoding='utf-8') == text, f'python -m dev.zoo: {path}'


# What our segmentors change in the bases of mmseg that their configs repeat.
OWN = """
    model.backbone.* model.data_preprocessor.size.* model.decode_head.in_channels.*
    model.decode_head.num_classes model.pretrained
    optim_wrapper.* optimizer.* param_scheduler.* auto_scale_lr.* custom_imports.*
    default_hooks.checkpoint.type default_hooks.exact_resume.type default_hooks.non_finite.type
    train_cfg.type train_dataloader.batch_sampler.type train_dataloader.batch_size
    train_dataloader.num_workers train_dataloader.sampler.type
    train_pipeline.1.reduce_zero_label train_dataloader.dataset.pipeline.1.reduce_zero_label
    test_pipeline.2.reduce_zero_label test_dataloader.dataset.pipeline.2.reduce_zero_label
    val_dataloader.dataset.pipeline.2.reduce_zero_label
    xcit.* no_weight_decay.* failsafe_hooks.*
"""
OWN_OF_HEADS = {
    SEM_FPN: 'fpn_r50 model.neck.in_channels.* model.neck.out_channels',
    UPERNET: 'upernet_r50 model.auxiliary_head.in_channels model.auxiliary_head.num_classes '
    'train_cfg.max_iters train_cfg.val_interval default_hooks.checkpoint.interval',
}


def leaves(value, path=()):
    """The values of a config by their paths, without the scopes that mmengine notes."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        here = (*path, str(key))
        if isinstance(item, dict | list | tuple) and item:
            yield from leaves(item, here)
        elif key != '_scope_':
            yield '.'.join(here), item


@pytest.mark.parametrize('path', [SEM_FPN, UPERNET], ids=lambda p: p.stem)
def test_what_segmentors_do_not_change_is_as_in_mmseg(path, tmp_path):
    """They name mmseg's values, since the forks of mmengine do not find ``mmseg::``."""
    model, *own_of_head = OWN_OF_HEADS[path].split()
    files = f'models/{model} datasets/ade20k schedules/schedule_80k default_runtime'.split()
    folder = Path(get_installed_path('mmseg'), '.mim', 'configs', '_base_')
    config = tmp_path / 'inherited.py'
    config.write_text(f'_base_ = {[f"{folder}/{file}.py" for file in files]}')
    theirs = dict(leaves(Config.fromfile(config).to_dict()))
    ours = dict(leaves(Config.fromfile(path).to_dict()))
    names = theirs.keys() | ours.keys()
    changed = {name for name in names if theirs.get(name, names) != ours.get(name, names)}
    expected = [*OWN.split(), *own_of_head]
    assert not [name for name in changed if not any(fnmatch(name, own) for own in expected)]
    assert not [own for own in expected if not any(fnmatch(name, own) for name in changed)]
