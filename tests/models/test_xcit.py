"""What the backbone promises besides parity."""

import copy

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from xcit_mm.models import VARIANTS, XCiT, XCiTClassifier

TINY = dict(embed_dims=32, depth=4, num_heads=4)


def tiny(patch_size=16, **kwargs):
    return XCiT(TINY, patch_size, **{'out_indices': (0, 1, 2, 3), **kwargs})


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


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('size', [(64, 96), (45, 61), (16, 16), (17, 200), (33, 47)])
@pytest.mark.parametrize('training', [True, False])
def test_strides_for_any_size(patch_size, size, training):
    model = tiny(patch_size).train(training)
    with torch.set_grad_enabled(training):
        levels = model(torch.randn(2, 3, *size))
    grid = [-(-side // patch_size) for side in size]
    for level, stride in zip(levels, (4, 8, 16, 32), strict=True):
        up, down = max(patch_size // stride, 1), max(stride // patch_size, 1)
        assert level.shape == (2, 32, *(max(side * up // down, 1) for side in grid))
        assert level.is_contiguous()


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('strides', [(8, 16, 32), (32,), (4, 64), [4, 8, 16, 32, 64]])
def test_strides_can_be_chosen(patch_size, strides):
    arch = dict(TINY, depth=5)
    layers = tuple(range(5 - len(strides), 5))
    model = XCiT(arch, patch_size, out_indices=layers, strides=strides).eval()
    images = torch.randn(2, 3, 128, 192)
    levels = model(images)
    assert [tuple(x.shape[2:]) for x in levels] == [(128 // s, 192 // s) for s in strides]
    with torch.no_grad():
        for a, b in zip(model(images), levels, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    sum(level.square().mean() for level in levels).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_papers_layer_of_each_stride():
    with torch.device('meta'):
        assert XCiT('n12', strides=(8, 16, 32)).out_indices == (5, 7, 11)
        assert XCiT('t24', strides=(32,)).out_indices == (23,)


def test_columnar_features_without_a_pyramid():
    features = tiny(pyramid=False)(torch.randn(1, 3, 64, 96))
    assert [tuple(f.shape) for f in features] == [(1, 32, 4, 6)] * 4
    assert len(XCiT(TINY, pyramid=False, out_indices=(0, 3))(torch.randn(1, 3, 32, 32))) == 2


def test_released_backbone_dicts_work_unchanged():
    model = MODELS.build(
        dict(
            type='XCiT', patch_size=8, embed_dim=384, depth=12, num_heads=8, mlp_ratio=4,
            qkv_bias=True, eta=1e-5, drop_path_rate=0.05, out_indices=[3, 5, 7, 11],
        )
    )  # fmt: skip
    assert model.layers[0].gamma1[0].item() == pytest.approx(1e-5)
    with pytest.raises(TypeError, match='color'):
        XCiT(color='red')
    with pytest.raises(ValueError, match='go together'):
        XCiT(embed_dim=384)
    with pytest.raises(ValueError, match='drop_rate'):
        XCiT(embed_dim=32, depth=12, num_heads=4, drop_rate=0.1)


WRONG_ARGUMENTS = [
    (dict(arch='s13'), ValueError, 's12'),
    (dict(arch=3), TypeError, 'str or a dict'),
    (dict(arch=dict(TINY, heads=3)), ValueError, 'heads'),
    (dict(arch=dict(embed_dims=32)), ValueError, 'depth'),
    (dict(arch=dict(TINY, num_heads=5), out_indices=(0,)), ValueError, '32 with 5 heads'),
    (dict(arch=dict(TINY, depth=0), out_indices=(0,)), ValueError, 'depth'),
    (dict(arch=TINY), ValueError, 'out_indices must be given for a depth of 4'),
    (dict(arch=TINY, out_indices=(0, 4)), ValueError, r'0\.\.\.3'),
    (dict(arch=TINY, out_indices=(-1,)), ValueError, r'0\.\.\.3'),
    (dict(arch=TINY, out_indices=()), ValueError, r'0\.\.\.3'),
    (dict(arch=TINY, out_indices=(1, 0)), ValueError, 'ascending'),
    (dict(arch=TINY, out_indices=(1, 1)), ValueError, 'ascending'),
    (dict(arch=TINY, out_indices=1), TypeError, 'sequence'),
    (dict(arch=TINY, out_indices='12'), TypeError, 'sequence'),
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
        tiny()(images)


def test_frozen_stages_stay_frozen_and_in_eval_mode():
    model = tiny(frozen_stages=2).train()
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
    model = tiny(norm_eval=True).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 4 + 4 + 1 and not any(norm.training for norm in norms)
    assert model.layers[0].training and norms[0].weight.requires_grad


def test_norm_cfg_reaches_every_batch_norm():
    model = tiny(norm_cfg=dict(type='GN', num_groups=2))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert sum(isinstance(m, nn.GroupNorm) for m in model.modules()) == 9
    images = torch.randn(1, 3, 64, 64)
    model.eval()
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


@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(recompute_ffn=True)])
def test_every_parameter_has_a_gradient(options):
    model = tiny(**options).train()
    sum(level.square().mean() for level in model(torch.randn(2, 3, 64, 64))).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_recomputation_moves_running_statistics_once():
    models = [tiny(with_cp=with_cp).train() for with_cp in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    images = torch.randn(2, 3, 64, 64)
    for model in models:
        sum(level.square().mean() for level in model(images)).backward()
    for (name, a), (_, b) in zip(*(m.named_buffers() for m in models), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    assert models[1].layers[0].lpi.norm.num_batches_tracked == 1
    assert models[1].layers[0].lpi.norm.momentum == 0.1


def test_stochastic_depth_drops_whole_branches_and_keeps_the_mean():
    model = XCiT(dict(TINY, drop_path_rate=0.5), out_indices=(0,), pyramid=False).train()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eval()
    images = torch.randn(1, 3, 32, 32).expand(400, -1, -1, -1)
    with torch.no_grad():
        dropped = model(images)[0]
        kept = model.eval()(images[:1])[0]
    values = dropped.flatten(1)
    assert len(values.unique(dim=0)) > 4
    assert (values - values[0]).abs().max() > 0
    assert kept.shape[1:] == dropped.shape[1:]


def test_inference_never_overwrites_input_or_outputs():
    model = tiny(pyramid=False).eval()
    images = torch.randn(1, 3, 64, 64)
    before = images.clone()
    with torch.inference_mode():
        first = model(images)
        copies = [feature.clone() for feature in first]
        model(torch.randn(1, 3, 64, 64))
    assert torch.equal(images, before)
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))
    pointers = {feature.data_ptr() for feature in first}
    assert len(pointers) == 4


@pytest.mark.parametrize('attention', ['token', 'covariance'])
@pytest.mark.parametrize('dtype, bound', [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_autocast_is_close_and_finite(attention, dtype, bound):
    model = tiny(attention=attention, pyramid=False).eval()
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        exact = model(images)
        with torch.autocast('cpu', dtype=dtype):
            low = model(images)
    for a, b in zip(low, exact, strict=True):
        assert torch.isfinite(a).all()
        assert ((a.float() - b).norm() / b.norm()) < bound
    model.train()
    with torch.autocast('cpu', dtype=dtype):
        loss = sum(f.float().square().mean() for f in model(images))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_channels_last_inputs_and_double_precision_agree():
    model = tiny().eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        plain = model(images)
        last = model(images.contiguous(memory_format=torch.channels_last))
        double = copy.deepcopy(model).double()(images.double())
    for a, b, c in zip(plain, last, double, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a.double(), c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('attention', ['token', 'covariance'])
def test_compiled_equals_eager(attention):
    model = tiny(attention=attention, pyramid=False).eval()
    images = torch.randn(1, 3, 64, 64)
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    with torch.no_grad():
        for a, b in zip(compiled(images), model(images), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    model.train()
    loss = sum(f.square().mean() for f in compiled(images))
    loss.backward()
    compiled_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sum(f.square().mean() for f in model(images)).backward()
    for a, p in zip(compiled_grads, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-3, atol=1e-5)


def test_exported_equals_eager():
    model = tiny(attention='covariance').eval()
    images = torch.randn(1, 3, 64, 64)
    exported = torch.export.export(model, (images,)).module()
    with torch.no_grad():
        for a, b in zip(exported(images), model(images), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_deepcopy_and_state_dict_round_trip():
    model = tiny().eval()
    clone = copy.deepcopy(model)
    other = tiny().eval()
    other.load_state_dict(model.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model(images)
        for twin in (clone, other):
            assert all(torch.equal(a, b) for a, b in zip(twin(images), expected, strict=True))


def test_classifier_without_head_and_wrong_num_classes():
    model = XCiTClassifier(TINY, num_classes=0).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 32)
    with pytest.raises(ValueError, match='num_classes'):
        XCiTClassifier(TINY, num_classes=-1)
    model.init_weights()
    assert model.cls_token.std() > 0
