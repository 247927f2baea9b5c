"""Tools that change a network, look into it or transform it get what the plain modules give."""

import copy

import pytest
import torch
from mmcv.cnn import fuse_conv_bn
from mmengine.analysis import get_model_complexity_info
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations

from ... import tiny

FORMS = [dict(attention='token'), dict(attention='covariance')]
RECOMPUTED = [dict(with_cp=True), dict(recompute_ffn=True)]


def backbone(**options):
    return tiny.backbone(**dict(strides=(8, 32), norm_eval=True) | options).train()


@pytest.fixture
def images():
    return torch.randn(2, 3, 64, 48)


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def results(model, images):
    """Levels and gradients with autograd, and levels without."""
    model.zero_grad()
    levels = model(images)
    if any(level.requires_grad for level in levels):
        sum(level.square().mean() for level in levels).backward()
    with torch.no_grad():
        inferred = model.eval()(images)
    return [*levels, *inferred, *(p.grad for p in model.parameters() if p.grad is not None)]


# Tools that change modules


class LoRA(nn.Module):
    """A low-rank adapter around a linear layer, as peft makes it."""

    def __init__(self, base_layer, rank=2):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def add_lora(model):
    model.requires_grad_(False)
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if name in ('qkv', 'proj', 'fc1', 'fc2'):
                setattr(parent, name, LoRA(child))
    return model


def add_spectral_norm(model):
    for module in [*model.modules()]:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            parametrizations.spectral_norm(module)
    return model.eval()


def quantize(model):
    return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('attention', FORMS)
@pytest.mark.parametrize('change', [add_lora, add_spectral_norm, quantize])
def test_changed_modules_run_and_learn(change, attention, images):
    model = backbone(**attention)
    before = model(images)
    model = change(model)
    assert model.fast
    actual = results(model, images)
    slow = copy.deepcopy(model)
    slow.fast = False
    assert all(map(torch.equal, actual, results(slow, images)))
    assert not any(torch.equal(a, b) for a, b in zip(model(images), before, strict=True))
    if change is add_lora:
        learnt = {n for n, p in model.named_parameters() if p.grad is not None}
        assert learnt == {n for n, _ in model.named_parameters() if 'lora' in n} and learnt


@pytest.mark.parametrize('build', [tiny.backbone, tiny.classifier])
def test_mmcv_fuses_batch_norm_only_into_the_convolution_before_it(build, images):
    model = build()
    with torch.no_grad():
        assert_close(fuse_conv_bn(copy.deepcopy(model))(images), model(images))


# Tools that look into modules


@pytest.mark.parametrize('attention', FORMS)
def test_backward_hooks_see_every_module(attention, images):
    model = backbone(**attention)
    names = {n for n, m in model.named_modules() if n and not isinstance(m, nn.ModuleList)}
    gradients: dict = {}
    for name in names:
        model.get_submodule(name).register_full_backward_hook(
            lambda _, inputs, outputs, name=name: gradients.update({name: outputs[0].clone()})
        )
    results(model, images)
    actual = dict(gradients)
    model.fast = False
    results(model.train(), images)
    assert set(actual) == names
    assert all(torch.equal(actual[name], gradients[name]) for name in names)


def test_torchvisions_feature_extractor():
    extraction = pytest.importorskip('torchvision.models.feature_extraction')
    model = backbone().eval()
    names = ['layers.0.xca', 'layers.1.ffn.fc1', 'pyramid.levels.3']
    extract = extraction.create_feature_extractor(model, names)
    with torch.no_grad():
        for size in ((64, 48), (33, 100)):  # a graph serves images of any size
            images = torch.randn(2, 3, *size)
            features = extract(images)
            assert list(features) == names
            assert_close([features[names[2]]], [model(images)[1]])


@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(fast=False)])
@pytest.mark.parametrize('grad', [True, False])
def test_mmengine_counts_operations(grad, options):
    model = backbone(**options).eval()
    with torch.set_grad_enabled(grad):
        result = get_model_complexity_info(model, (3, 64, 64), show_table=False, show_arch=False)
    assert result['params'] == sum(p.numel() for p in model.parameters())
    tokens, dims, layers = 16, 16, 2
    # Queries, keys, values, projection and feed-forward network, and the attention of two heads.
    linear = layers * tokens * (12 * dims**2 + 2 * dims**2 // 2)
    assert linear < result['flops'] < 3 * linear


# Tools that transform functions


@pytest.mark.parametrize('options', [{}, *RECOMPUTED])
@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('capture', [torch.jit.trace, lambda model, images: make_fx(model)(images)])
def test_a_captured_graph(capture, grad, options, images):
    model = backbone(**options).eval()
    with torch.set_grad_enabled(grad):
        captured = capture(model, images)
        other = torch.randn_like(images)
        levels = captured(other)
        assert_close(levels, model(other))
    assert all(level.requires_grad == grad for level in levels)


@pytest.mark.parametrize(
    'capture',
    [
        torch.jit.trace,
        lambda model, images: torch.fx.symbolic_trace(model),
        lambda model, images: torch.export.export(
            model, (images,), dynamic_shapes=({0: torch.export.Dim('batch')},)
        ).module(),
    ],
    ids=['trace', 'fx', 'export'],
)
@pytest.mark.parametrize('num_classes', [0, 5])
def test_a_captured_classifier_takes_any_batch(num_classes, capture, images):
    model = tiny.classifier(num_classes=num_classes)
    captured = capture(model, images)
    for count in (2, 3, 5):
        images = torch.randn(count, 3, 64, 48)
        assert_close([captured(images)], [model(images)])


@pytest.mark.parametrize('attention', FORMS)
@pytest.mark.parametrize('grad', [True, False])
def test_vmap(grad, attention):
    model = backbone(**attention).eval()
    groups = torch.randn(3, 2, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        levels = torch.func.vmap(model)(groups)
        for i, group in enumerate(groups):
            assert_close([level[i] for level in levels], model(group))


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('options', [{}, *RECOMPUTED])
def test_gradients_per_sample(options, training):
    model = backbone(**options).double().train(training)
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def loss(parameters, image):
        levels = torch.func.functional_call(model, parameters, (image[None],))
        return sum(level.square().mean() for level in levels)

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images)
    for i, image in enumerate(images):
        model.zero_grad()
        loss(parameters, image).backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(per_sample[name][i], parameter.grad)


@pytest.mark.parametrize('grad', [True, False])
def test_forward_mode_differentiation(grad):
    model = backbone().double().eval()
    images, direction = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(images, direction)
            tangents = [forward_ad.unpack_dual(level).tangent for level in model(dual)]
        expected = torch.func.jvp(model, (images,), (direction,))[1]
    torch.testing.assert_close(tuple(tangents), expected)


@pytest.mark.parametrize('options', [*FORMS, *RECOMPUTED])
def test_second_derivatives(options):
    model = backbone(**options).double()
    images, direction = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)

    def products():
        inputs = images.clone().requires_grad_()
        loss = sum(level.square().mean() for level in model(inputs))
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        wanted = [inputs, *model.layers.parameters()]
        return torch.autograd.grad((gradient * direction).sum(), wanted)

    fast = products()
    model.fast = False
    torch.testing.assert_close(fast, products())


@pytest.mark.parametrize('options', [*FORMS, dict(with_cp=True)])
@pytest.mark.parametrize('batch', [1, 2])
def test_gradients_of_many_at_once(batch, options):
    model = backbone(**options).double()
    level = model(torch.randn(batch, 3, 64, 48, dtype=torch.float64))[0]
    parameters = [p for n, p in model.named_parameters() if n.startswith(('patch', 'layers.0'))]
    vectors = torch.randn(3, *level.shape, dtype=torch.float64)

    def gradients(vector, **settings):
        return torch.autograd.grad(level, parameters, vector, retain_graph=True, **settings)

    many = gradients(vectors, is_grads_batched=True)
    for i, vector in enumerate(vectors):
        torch.testing.assert_close(tuple(each[i] for each in many), gradients(vector))
