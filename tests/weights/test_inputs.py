"""Released weights that meet images in another normalization than they were trained with."""

import pytest
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.runner import Runner

from dev.other_models import BASES
from tests.tiny import merged
from tests.weights.test_formats import to_released
from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.models import XCiT
from xcit_mm.weights.inputs import MEAN, STD, other_inputs

RGB = dict(mean=list(MEAN), std=list(STD), bgr_to_rgb=True)


@pytest.mark.parametrize(
    'runner, init', [(Runner, 'PretrainedXCiT'), (GuardedRunner, 'Pretrained')]
)
def test_a_warning_names_what_the_config_feeds_and_what_the_weights_expect(
    runner, init, small_data, tmp_path, capfd
):
    """With the runner of other people's tools as well as with ours."""
    cfg = Config.fromstring(merged('seg').replace('DATA', str(small_data)), '.py')
    backbone = {k: v for k, v in cfg.model.backbone.items() if k in ('arch', 'out_indices')}
    torch.save(to_released(XCiT(**backbone).state_dict()), tmp_path / 'released.pth')
    cfg.model.backbone.init_cfg = dict(type=init, checkpoint=str(tmp_path / 'released.pth'))
    cfg.model.data_preprocessor.update(std=[1.0, 1.0, 1.0], bgr_to_rgb=False)
    cfg.model.backbone.norm_cfg = cfg.model.neck.norm_cfg = dict(type='BN')
    cfg.model.decode_head.norm_cfg = dict(type='BN')
    cfg.work_dir = str(tmp_path / 'work')
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    runner.from_cfg(cfg).train()
    printed = ''.join(capfd.readouterr())
    assert printed.count('expect RGB images') == 1
    assert f'feeds BGR images with mean={RGB["mean"]} and std=[1.0, 1.0, 1.0]' in printed


def test_configs_are_flagged_only_where_it_is_certain():
    loader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile')]))

    def ask(loader=loader, **settings):
        return other_inputs(dict(model=dict(data_preprocessor=settings), train_dataloader=loader))

    scaled = {name: [v / 255 for v in RGB[name]] for name in ('mean', 'std')}
    assert ask(**RGB) is ask(**scaled, bgr_to_rgb=True) is None
    assert ask(mean=[124, 116, 104], std=[58, 57, 57], bgr_to_rgb=True) is None
    assert ask(type='Several', data_preprocessor=RGB) is None
    normalizes = [dict(type='LoadImageFromFile'), dict(type='mmdet.Normalize', **scaled)]
    assert ask(dict(pipeline=normalizes), type='DetDataPreprocessor') is None
    assert ask(dict(pipeline=[dict(type='LoadMyImages')]), type='DetDataPreprocessor') is None
    assert other_inputs(dict(train_dataloader=loader)) is other_inputs({}) is None
    assert ask(**{**RGB, 'bgr_to_rgb': False}).startswith('BGR images with mean=[123.675')
    assert ask(pad_size_divisor=32) == 'BGR images that are not normalized'
    # The bases that feed other images, before a row of the page changes them.
    fed = {name: other_inputs(get_config(base)) for base, (_, name) in BASES.items()
           if name in ('RetinaNet', 'FCOS', 'RTMDet', 'YOLOX')}  # fmt: skip
    assert fed.pop('RetinaNet') is None and all(fed.values())
