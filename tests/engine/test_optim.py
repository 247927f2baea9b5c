"""Layer-wise learning rates, and mixed precision only with CUDA."""

import importlib

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper, build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.errors import UserError
from xcit_mm.models import XCiT

TINY = dict(embed_dims=32, depth=4, num_heads=4)
ADAMW = dict(type='AdamW', lr=1.0, weight_decay=0.05)


class Detector(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = XCiT(TINY, out_indices=(0, 1, 2, 3))
        self.neck = nn.Conv2d(32, 8, 1)

    def forward(self, x):
        return [self.neck(level) for level in self.backbone(x)]


def groups_by_name(optimizer=ADAMW, **paramwise):
    """Return the parameter groups of the layer-wise constructor by the name of the parameter."""
    model = Detector()
    settings = dict(
        optimizer=optimizer,
        constructor='XCiTLayerDecayOptimWrapperConstructor',
        paramwise_cfg=paramwise,
    )
    wrapper = build_optim_wrapper(model, settings)
    names = {id(p): n for n, p in model.named_parameters()}
    return {names[id(g['params'][0])]: g for g in wrapper.optimizer.param_groups}


def test_layer_decay_and_norm_decay():
    groups = groups_by_name(layer_decay_rate=0.5, norm_decay_mult=0.0)
    rates = {name: group['lr'] for name, group in groups.items()}
    assert rates['neck.weight'] == rates['backbone.pyramid.levels.0.0.weight'] == 1.0
    assert rates['backbone.layers.3.xca.qkv.weight'] == 0.5
    assert rates['backbone.layers.0.gamma1'] == 0.5**4
    assert rates['backbone.patch_embed.layers.0.conv.weight'] == 0.5**5
    decay = {name: group['weight_decay'] for name, group in groups.items()}
    assert decay['backbone.layers.0.norm1.weight'] == 0
    assert decay['backbone.layers.0.lpi.norm.bias'] == 0
    assert decay['backbone.layers.0.ffn.fc1.weight'] == 0.05
    alone = groups_by_name(layer_decay_rate=0.9)
    assert {group['weight_decay'] for group in alone.values()} == {0.05}


@pytest.mark.parametrize('rate', [{}, dict(layer_decay_rate=0), dict(layer_decay_rate=1.5)])
def test_a_missing_or_wrong_rate_is_refused(rate):
    with pytest.raises(ValueError, match='layer_decay_rate'):
        groups_by_name(norm_decay_mult=0, **rate)


@pytest.mark.parametrize('norms', [{}, dict(norm_decay_mult=0.0)])
def test_missing_settings_are_those_of_the_optimizer(norms):
    groups = groups_by_name(dict(type='AdamW'), layer_decay_rate=0.5, **norms)
    assert groups['neck.weight']['lr'] == 1e-3 and groups['neck.weight']['weight_decay'] == 0.01
    norm = groups['backbone.layers.0.norm1.weight']
    assert norm['lr'] == 1e-3 * 0.5**4 and norm['weight_decay'] == (0 if norms else 0.01)


@pytest.mark.parametrize('library', ['mmdet', 'mmseg'])
def test_an_error_names_our_constructor_where_those_of_others_do_not_know_xcit(library, tmp_path):
    """Their own error has no text."""
    importlib.import_module(f'{library}.engine')
    constructor = f'{library}.LearningRateDecayOptimizerConstructor'
    rates = dict(num_layers=12, decay_rate=0.75)
    runner = GuardedRunner(Detector(), str(tmp_path))
    with pytest.raises(UserError, match=r"does not know .*'XCiTLayerDecayOptimWrapperConstructor'"):
        runner.build_optim_wrapper(
            dict(optimizer=ADAMW, constructor=constructor, paramwise_cfg=rates)
        )


def test_mixed_precision_only_with_cuda():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='CudaAmpOptimWrapper'), default_args=dict(optimizer=optimizer)
    )
    expected = AmpOptimWrapper if torch.cuda.is_available() else OptimWrapper
    assert type(wrapper) is expected
