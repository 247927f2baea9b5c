"""Every config loads, builds and trains its network; the recipes are the paper's."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.models import XCiT
from xcit_mm.models.variants import resolve_variant

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(
    p for d in ('detection', 'segmentation') for p in (ROOT / 'configs' / d).glob('*.py')
)
PAPER = [p for p in CONFIGS if not p.stem.endswith('_shapes')]


def load(path, **options):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({'model.backbone.init_cfg': None, **options})
    return cfg


def build(cfg):
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def test_every_size_and_head_is_there():
    names = {p.stem for p in CONFIGS}
    for arch in ('n12', 't12', 't24', 's12', 's24', 'm24', 'l24'):
        for patch in (16, 8):
            size = f'xcit_{arch}_{patch}'
            wanted = {f'mask_rcnn_{size}_3x', f'sem_fpn_{size}_80k', f'upernet_{size}_160k'}
            assert wanted <= names
            if arch in ('s12', 's24'):
                assert f'cascade_mask_rcnn_{size}_3x' in names


@pytest.mark.parametrize('path', PAPER, ids=lambda p: p.stem)
def test_config_says_what_its_name_says(path):
    cfg = Config.fromfile(path)
    _, _, rest = path.stem.partition('xcit_')
    arch, patch, schedule = rest.split('_')
    backbone = cfg.model.backbone
    assert (backbone.arch, backbone.patch_size) == (arch, int(patch))
    assert backbone.init_cfg.checkpoint == f'xcit://{arch}/{patch}/384_dist'
    with torch.device('meta'):
        model = build(load(path))
    assert isinstance(model.backbone, XCiT)
    variant = resolve_variant(arch, int(patch))
    assert model.backbone.drop_path_rate == variant.drop_path_rate
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=16)
    if schedule in ('1x', '3x'):
        assert cfg.train_cfg.max_epochs == {'1x': 12, '3x': 36}[schedule]
    else:
        assert cfg.train_cfg.max_iters == {'80k': 80000, '160k': 160000}[schedule]
