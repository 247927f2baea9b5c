"""Each ablation of the paper lacks one idea, and all else is as before."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from xcit_mm.models import AblatedXCiT, AblatedXCiTClassifier, XCiTClassifier
from xcit_mm.models.ablations import ABLATIONS

from ..tiny import ROOT, TINY

ARCH = TINY['2 layers']
FOLDER = ROOT / 'configs/classification/ablations'
IMAGES = torch.randn(2, 3, 37, 50, generator=torch.Generator().manual_seed(1))
each = pytest.mark.parametrize('ablation', ABLATIONS)


@each
def test_a_config_of_three_lines_builds_it(ablation):
    path = FOLDER / f'xcit_s12_16_{ablation}.py'
    assert len(path.read_text().splitlines()) == 3
    backbone = Config.fromfile(path).model.backbone
    assert (backbone.arch, backbone.ablation) == ('s12', ablation)
    backbone.update(arch=ARCH, norm_cfg=dict(type='BN'))
    assert isinstance(MODELS.build(backbone), AblatedXCiTClassifier)


def test_the_papers_table_is_complete():
    """Its rows, and self-attention, which is ours."""
    rows = {f'xcit_s12_16_{name}' for name in ABLATIONS} | {'xcit_s12_8_linear_patch'}
    assert {path.stem for path in FOLDER.glob('*.py')} == rows
    backbone = Config.fromfile(FOLDER / 'xcit_s12_8_linear_patch.py').model.backbone
    assert (backbone.patch_size, backbone.ablation) == (8, 'linear_patch')


@each
def test_every_trained_parameter_gets_a_gradient(ablation):
    model = AblatedXCiTClassifier(ARCH, num_classes=3, ablation=ablation)
    model.init_weights()
    model(IMAGES).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert not parameter.requires_grad or parameter.grad.abs().sum() > 0, name
    levels = AblatedXCiT(ARCH, out_indices=(0, 1), strides=(8, 16), ablation=ablation)(IMAGES)
    assert all(level.isfinite().all() for level in levels)


@each
def test_it_lacks_one_idea_and_keeps_the_rest(ablation):
    """The full network computes the same where the missing idea has no effect."""
    torch.manual_seed(0)
    model = AblatedXCiTClassifier(ARCH, num_classes=3, ablation=ablation).eval()
    full = XCiTClassifier(ARCH, num_classes=3, fast=False).eval()
    shared = {k: v for k, v in model.state_dict().items() if k in full.state_dict()}
    torch.nn.Module.load_state_dict(full, {**full.state_dict(), **shared})
    gamma = {'without_lpi': 'gamma3', 'without_xca': 'gamma1'}.get(ablation)
    with torch.no_grad():
        is_same = torch.allclose(model(IMAGES), full(IMAGES))
        assert is_same == (ablation == 'without_temperature')
        if gamma is not None:
            for layer in full.layers:
                getattr(layer, gamma).zero_()
            assert torch.allclose(model(IMAGES), full(IMAGES), rtol=1e-4, atol=1e-6)


def test_an_unknown_ablation_is_refused():
    with pytest.raises(ValueError, match='ablation must be one of linear_patch, without_lpi'):
        AblatedXCiT(ARCH, ablation='without_all', out_indices=(0, 1), strides=(8, 16))
