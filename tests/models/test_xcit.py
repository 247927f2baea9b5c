"""What the backbone promises besides parity and the properties of every backbone."""

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from xcit_mm.models import VARIANTS, XCiT, XCiTClassifier

from ..tiny import TINY, backbone

ARCH = TINY['4 layers']


def test_registered_once_at_the_root_and_found_from_mmdet_and_mmseg():
    from mmdet.registry import MODELS as MMDET
    from mmseg.registry import MODELS as MMSEG

    cfg = dict(type='XCiT', arch='n12')
    for registry in (MODELS, MMDET, MMSEG):
        assert isinstance(registry.build(cfg), XCiT)


@pytest.mark.parametrize('arch', list(VARIANTS))
def test_defaults_are_the_papers(arch):
    with torch.device('meta'):
        model = XCiT(arch.upper(), 8)
    depth = VARIANTS[arch].depth
    assert model.out_indices == {12: (3, 5, 7, 11), 24: (7, 11, 15, 23)}[depth]
    assert model.drop_path_rate == {'l24': 0.3}.get(arch, VARIANTS[arch].drop_path_rate)
    assert model.layers[0].drop_path.drop_prob == model.layers[-1].drop_path.drop_prob
    assert model.layer_scale_init == VARIANTS[arch].layer_scale_init


def test_the_papers_layer_of_each_stride():
    with torch.device('meta'):
        assert XCiT('n12', strides=(8, 16, 32)).out_indices == (5, 7, 11)
        assert XCiT('t24', strides=(32,)).out_indices == (23,)


def test_released_backbone_dicts_work_unchanged():
    model = MODELS.build(
        dict(
            type='XCiT', patch_size=8, embed_dim=384, depth=12, num_heads=8, mlp_ratio=4,
            qkv_bias=True, eta=1e-5, drop_path_rate=0.05, out_indices=[3, 5, 7, 11],
        )
    )  # fmt: skip
    assert model.layers[0].gamma1[0].item() == pytest.approx(1e-5)


WRONG_ARGUMENTS = [
    (dict(color='red'), TypeError, 'color'),
    (dict(embed_dim=384), ValueError, 'go together'),
    (dict(embed_dim=32, depth=12, num_heads=4, drop_rate=0.1), ValueError, 'drop_rate'),
    (dict(arch='s13'), ValueError, 's12'),
    (dict(arch=3), TypeError, 'str or a dict'),
    (dict(arch=dict(ARCH, heads=3)), ValueError, 'heads'),
    (dict(arch=dict(embed_dims=32)), ValueError, 'depth'),
    (dict(arch=dict(ARCH, num_heads=5), out_indices=(0,)), ValueError, '24 with 5 heads'),
    (dict(arch=dict(ARCH, depth=0), out_indices=(0,)), ValueError, 'depth'),
    (dict(arch=ARCH), ValueError, 'out_indices must be given for a depth of 4'),
    (dict(arch=ARCH, out_indices=(0, 4)), ValueError, r'0\.\.\.3'),
    (dict(arch=ARCH, out_indices=(-1,)), ValueError, r'0\.\.\.3'),
    (dict(arch=ARCH, out_indices=()), ValueError, r'0\.\.\.3'),
    (dict(arch=ARCH, out_indices=(1, 0)), ValueError, 'ascending'),
    (dict(arch=ARCH, out_indices=(1, 1)), ValueError, 'ascending'),
    (dict(arch=ARCH, out_indices=1), TypeError, 'sequence'),
    (dict(arch=ARCH, out_indices='12'), TypeError, 'sequence'),
    (dict(out_indices=(5, 7, 11)), ValueError, r'strides must be given for 3 .*\(8, 16, 32\)'),
    (dict(out_indices=(1, 2, 3), strides=(8, 16)), ValueError, 'same length, not 3 and 2'),
    (dict(strides=(8, 32, 16)), ValueError, 'strides must be ascending'),
    (dict(strides=(2, 4)), ValueError, r'\(4, 8, 16, 32, 64\), not \(2, 4\)'),
    (dict(strides=()), ValueError, r'\(4, 8, 16, 32, 64\), not \(\)'),
    (dict(strides=32), TypeError, 'strides must be a sequence of ints, not 32'),
    (dict(strides=(8, 16, 64)), ValueError, 'out_indices must be given .* strides 4, 8, 16, 32'),
    (dict(strides=(8,), pyramid=False), ValueError, r'strides=\(8,\) needs pyramid=True'),
    (dict(patch_size=14), ValueError, '8 or 16, not 14'),
    (dict(attention='fast'), ValueError, 'auto, token, covariance'),
    (dict(frozen_stages=13), ValueError, r'-1\.\.\.12'),
]


@pytest.mark.parametrize('kwargs, error, message', WRONG_ARGUMENTS)
def test_wrong_arguments_name_the_value_and_what_is_allowed(kwargs, error, message):
    with pytest.raises(error, match=message):
        XCiT(**kwargs)


@pytest.mark.parametrize(
    'images, error, message',
    [
        (torch.randn(3, 32, 32), ValueError, r'\(batch, 3, height, width\), not \(3, 32, 32\)'),
        (torch.randn(1, 4, 32, 32), ValueError, r'not \(1, 4, 32, 32\)'),
        (torch.randn(1, 3, 15, 32), ValueError, '16x16, not 15x32'),
        (torch.ones(1, 3, 32, 32, dtype=torch.uint8), TypeError, 'uint8'),
        ([1], TypeError, 'list'),
    ],
)
def test_wrong_images_are_refused(images, error, message):
    with pytest.raises(error, match=message):
        backbone()(images)


def test_frozen_stages_stay_frozen_and_in_eval_mode():
    model = backbone('4 layers', frozen_stages=2).train()
    frozen = [model.patch_embed, model.pos_embed, model.layers[0], model.layers[1]]
    for module in frozen:
        assert not any(m.training for m in module.modules())
        assert not any(p.requires_grad for p in module.parameters())
    for module in (model.layers[2], model.pyramid):
        assert module.training and all(p.requires_grad for p in module.parameters())
    before = model.patch_embed.layers[0].norm.running_mean.clone()
    sum(level.mean() for level in model(torch.randn(2, 3, 64, 64))).backward()
    assert torch.equal(before, model.patch_embed.layers[0].norm.running_mean)
    assert model.layers[1].ffn.fc1.weight.grad is None
    assert model.layers[2].ffn.fc1.weight.grad is not None


def test_norm_eval_keeps_statistics_and_trains_weights():
    model = backbone('4 layers', norm_eval=True).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 4 + 4 + 1 and not any(norm.training for norm in norms)
    assert model.layers[0].training and norms[0].weight.requires_grad


def test_norm_cfg_reaches_every_batch_norm():
    model = backbone('4 layers', norm_cfg=dict(type='GN', num_groups=1))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert sum(isinstance(m, nn.GroupNorm) for m in model.modules()) == 9
    images = torch.randn(1, 3, 64, 64)
    with_grad = [level.detach() for level in model(images)]
    with torch.no_grad():
        for a, b in zip(model(images), with_grad, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_init_weights_gives_the_papers_values():
    model = XCiT('t24', 16)
    model.init_weights()
    weight = model.layers[3].ffn.fc1.weight
    assert 0.015 < weight.std() < 0.025 and weight.abs().max() < 2.01
    assert model.layers[3].ffn.fc1.bias.abs().max() == 0
    for layer in model.layers:
        for gamma in (layer.gamma1, layer.gamma2, layer.gamma3):
            assert torch.all(gamma == 1e-5)
        assert torch.all(layer.xca.temperature == 1)


@pytest.mark.parametrize(
    'options', [{}, dict(with_cp=True), dict(recompute_ffn=True), dict(strides=(4, 64))]
)
def test_every_parameter_has_a_gradient(options):
    model = backbone(**options).train()
    sum(level.square().mean() for level in model(torch.randn(2, 3, 64, 64))).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_exported_equals_eager():
    model = backbone()
    images = torch.randn(1, 3, 64, 64)
    exported = torch.export.export(model, (images,)).module()
    with torch.no_grad():
        for a, b in zip(exported(images), model(images), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_classifier_without_head_and_wrong_num_classes():
    model = XCiTClassifier(ARCH, num_classes=0).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 24)
    with pytest.raises(ValueError, match='num_classes'):
        XCiTClassifier(ARCH, num_classes=-1)
    model.init_weights()
    assert model.cls_token.std() > 0
