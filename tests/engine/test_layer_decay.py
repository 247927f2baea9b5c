"""Layer-wise learning rates."""

import importlib

import pytest
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from torch import nn

from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.errors import UserError
from xcit_mm.models import XCiT

TINY = dict(embed_dims=32, depth=4, num_heads=4)


class Detector(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1, 2, 3))
        self.neck = nn.Conv2d(32, 8, 1)

    def forward(self, x):
        return [self.neck(level) for level in self.backbone(x)]


def groups_by_name(model, wrapper):
    names = {id(p): n for n, p in model.named_parameters()}
    return {names[id(g['params'][0])]: g for g in wrapper.optimizer.param_groups}


def test_layer_decay_and_norm_decay():
    model = Detector()
    wrapper = build_optim_wrapper(
        model,
        dict(
            optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.05),
            constructor='XCiTLayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.5, norm_decay_mult=0.0),
        ),
    )
    groups = groups_by_name(model, wrapper)
    rates = {name: group['lr'] for name, group in groups.items()}
    assert rates['neck.weight'] == rates['backbone.pyramid.levels.0.0.weight'] == 1.0
    assert rates['backbone.layers.3.xca.qkv.weight'] == 0.5
    assert rates['backbone.layers.0.gamma1'] == 0.5**4
    assert rates['backbone.patch_embed.layers.0.conv.weight'] == 0.5**5
    decay = {name: group['weight_decay'] for name, group in groups.items()}
    assert decay['backbone.layers.0.norm1.weight'] == 0
    assert decay['backbone.layers.0.lpi.norm.bias'] == 0
    assert decay['backbone.layers.0.ffn.fc1.weight'] == 0.05
    for cfg in ({}, dict(layer_decay_rate=0), dict(layer_decay_rate=1.5)):
        with pytest.raises(ValueError, match='layer_decay_rate'):
            build_optim_wrapper(
                model,
                dict(
                    optimizer=dict(type='SGD', lr=1.0),
                    constructor='XCiTLayerDecayOptimWrapperConstructor',
                    paramwise_cfg=cfg or dict(norm_decay_mult=0),
                ),
            )


def test_layer_decay_alone_keeps_every_weight_decay():
    model = Detector()
    wrapper = build_optim_wrapper(
        model,
        dict(
            optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.05),
            constructor='XCiTLayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.9),
        ),
    )
    assert {g['weight_decay'] for g in wrapper.optimizer.param_groups} == {0.05}


@pytest.mark.parametrize('norms', [{}, dict(norm_decay_mult=0.0)])
def test_missing_settings_are_those_of_the_optimizer(norms):
    model = Detector()
    wrapper = build_optim_wrapper(
        model,
        dict(
            optimizer=dict(type='AdamW'),
            constructor='XCiTLayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.5, **norms),
        ),
    )
    groups = groups_by_name(model, wrapper)
    assert groups['neck.weight']['lr'] == 1e-3 and groups['neck.weight']['weight_decay'] == 0.01
    norm = groups['backbone.layers.0.norm1.weight']
    assert norm['lr'] == 1e-3 * 0.5**4 and norm['weight_decay'] == (0 if norms else 0.01)


@pytest.mark.parametrize('library', ['mmdet', 'mmseg'])
def test_an_error_names_our_constructor_where_those_of_others_do_not_know_xcit(library, tmp_path):
    """Their own error has no text."""
    importlib.import_module(f'{library}.engine')
    runner = GuardedRunner(Detector(), str(tmp_path))
    with pytest.raises(UserError, match=r"does not know .*'XCiTLayerDecayOptimWrapperConstructor'"):
        runner.build_optim_wrapper(
            dict(
                optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
                constructor=f'{library}.LearningRateDecayOptimizerConstructor',
                paramwise_cfg=dict(num_layers=12, decay_rate=0.75),
            )
        )
