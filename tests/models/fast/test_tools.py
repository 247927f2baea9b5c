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

from xcit_mm.models import XCiT, XCiTClassifier

from ..cases import TINY, randomize

LINEAR = ('qkv', 'proj', 'fc1', 'fc2')
FORMS = ('token', 'covariance')


def backbone(**options):
    options = dict(out_indices=(0, 1), strides=(8, 32), norm_eval=True) | options
    model = XCiT(TINY['2 layers'], 16, **options)
    randomize(model)
    return model.train()


@pytest.fixture
def images():
    return torch.randn(2, 3, 64, 48)


def results(model, images):
    """Levels and gradients with autograd, and levels without."""
    model.zero_grad()
    levels = model(images)
    if any(level.requires_grad for level in levels):
        sum(level.square().mean() for level in levels).backward()
    with torch.no_grad():
        inferred = model.eval()(images)
    return [*levels, *inferred, *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_plain(model, images):
    """The modules themselves run, also where the fast execution would be allowed."""
    assert model.fast
    actual = results(model, images)
    slow = copy.deepcopy(model)
    slow.fast = False
    for a, b in zip(actual, results(slow, images), strict=True):
        assert torch.equal(a, b)


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
            if name in LINEAR:
                setattr(parent, name, LoRA(child))


def add_peft_lora(model):
    peft = pytest.importorskip('peft')
    # Weights that change the output from the start.
    config = peft.LoraConfig(target_modules=list(LINEAR), init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)


@pytest.mark.parametrize('attention', FORMS)
@pytest.mark.parametrize('add', [add_lora, add_peft_lora])
def test_low_rank_adapters_work_and_learn(add, attention, images):
    model = backbone(attention=attention)
    before = model(images)
    add(model)
    assert_plain(model, images)
    adapters = {n: p for n, p in model.named_parameters() if 'lora' in n}
    assert len(adapters) == 2 * 4 * 2
    assert {n for n, p in model.named_parameters() if p.grad is not None} == set(adapters)
    for a, b in zip(model(images), before, strict=True):
        assert not torch.allclose(a, b, rtol=1e-3)


def test_parametrized_weights_are_used(images):
    model = backbone()
    before = model(images)
    for module in [*model.modules()]:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            parametrizations.spectral_norm(module)
    assert_plain(model.eval(), images)
    for a, b in zip(model(images), before, strict=True):
        assert not torch.allclose(a, b, rtol=1e-3)


@pytest.mark.filterwarnings('ignore')
def test_dynamic_quantization(images):
    model = backbone().eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert type(quantized.layers[0].ffn.fc1) is not nn.Linear
    assert_plain(quantized, images)
    with torch.no_grad():
        for a, b in zip(quantized(images), model(images), strict=True):
            assert 0 < (a - b).norm() / b.norm() < 0.05


@pytest.mark.parametrize('kind', [XCiT, XCiTClassifier])
def test_mmcv_fuses_batch_norm_only_into_the_convolution_before_it(kind, images):
    model = kind(
        TINY['2 layers'], 16, **(dict(out_indices=(0, 1), strides=(4, 8)) if kind is XCiT else {})
    )
    randomize(model)
    model.eval()
    with torch.no_grad():
        expected = model(images)
        actual = fuse_conv_bn(copy.deepcopy(model))(images)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# Tools that look into modules


@pytest.mark.parametrize('attention', FORMS)
def test_backward_hooks_see_every_module(attention, images):
    model = backbone(attention=attention)
    seen: dict = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) and name:
            module.register_full_backward_hook(
                lambda _, inputs, outputs, name=name: seen.update({name: outputs[0].clone()})
            )
    results(model, images)
    actual = dict(seen)
    model.fast = False
    results(model.train(), images)
    names = {n for n, m in model.named_modules() if n and not isinstance(m, nn.ModuleList)}
    assert set(actual) == names
    for name, gradient in seen.items():
        assert torch.equal(actual[name], gradient), name


def test_a_feature_extractor_gets_the_features_of_any_module(images):
    model = backbone().eval()
    names = ['patch_embed', 'layers.0.xca', 'layers.1.ffn.fc1', 'pyramid.levels.1', 'layers.1']
    features = {}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: features.update({name: output})
        )
        for name in names
    ]
    with torch.no_grad():
        levels = model(images)
        assert set(features) == set(names)
        assert torch.equal(features['pyramid.levels.1'], levels[0])
        tokens, grid = features['patch_embed']
        tokens = tokens + model.pos_embed(*grid)
        for layer in model.layers:
            tokens = layer(tokens, grid)
        assert torch.equal(features['layers.1'], tokens)
    for handle in handles:
        handle.remove()


def test_torchvisions_feature_extractor(images):
    extraction = pytest.importorskip('torchvision.models.feature_extraction')
    model = backbone().eval()
    names = ['layers.0.xca', 'layers.1.ffn.fc1', 'pyramid.levels.3']
    extract = extraction.create_feature_extractor(model, names)
    with torch.no_grad():
        for size in ((64, 48), (33, 100)):  # a graph serves images of any size
            images = torch.randn(2, 3, *size)
            features = extract(images)
            assert list(features) == names
            torch.testing.assert_close(features[names[2]], model(images)[1], rtol=1e-4, atol=1e-5)


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


def test_fvcore_counts_operations(images):
    fvcore = pytest.importorskip('fvcore.nn')
    model = backbone().eval()
    counts = [fvcore.FlopCountAnalysis(m, images).total() for m in (model, backbone(fast=False))]
    assert counts[0] == counts[1] > 0


# Tools that transform functions


@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(recompute_ffn=True)])
def test_a_trace_with_gradients(options, images):
    model = backbone(**options).eval()
    traced = torch.jit.trace(model, images)
    other = torch.randn_like(images)
    for a, b in zip(traced(other), model(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.requires_grad


@pytest.mark.parametrize('grad', [True, False])
def test_a_graph_of_operators(grad, images):
    model = backbone().eval()
    with torch.set_grad_enabled(grad):
        graph = make_fx(model)(images)
        for a, b in zip(graph(images), model(images), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('attention', FORMS)
@pytest.mark.parametrize('grad', [True, False])
def test_vmap(grad, attention):
    model = backbone(attention=attention).eval()
    groups = torch.randn(3, 2, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        levels = torch.func.vmap(model)(groups)
        for i, group in enumerate(groups):
            for a, b in zip(levels, model(group), strict=True):
                torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(recompute_ffn=True)])
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
    for a, b in zip(tangents, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    'options',
    [dict(attention=form) for form in FORMS] + [dict(with_cp=True), dict(recompute_ffn=True)],
)
def test_second_derivatives(options):
    model = backbone(**options).double().train()
    images, direction = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)

    def products():
        inputs = images.clone().requires_grad_()
        loss = sum(level.square().mean() for level in model(inputs))
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        wanted = [inputs, *model.layers.parameters()]
        return torch.autograd.grad((gradient * direction).sum(), wanted)

    fast = products()
    model.fast = False
    for a, b in zip(fast, products(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('capture', ['trace', 'fx', 'export'])
@pytest.mark.parametrize('num_classes', [0, 5])
def test_a_captured_classifier_takes_any_batch(num_classes, capture, images):
    model = XCiTClassifier(TINY['2 layers'], 16, num_classes=num_classes)
    randomize(model)
    model.eval()
    if capture == 'trace':
        captured = torch.jit.trace(model, images)
    elif capture == 'fx':
        captured = torch.fx.symbolic_trace(model)
    else:
        batch = {0: torch.export.Dim('batch')}
        captured = torch.export.export(model, (images,), dynamic_shapes=(batch,)).module()
    for count in (2, 3, 5):
        images = torch.randn(count, 3, 64, 48)
        torch.testing.assert_close(captured(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('options', [*({'attention': form} for form in FORMS), dict(with_cp=True)])
@pytest.mark.parametrize('batch', [1, 2])
def test_gradients_of_many_at_once(batch, options):
    model = backbone(**options).double()
    level = model(torch.randn(batch, 3, 64, 48, dtype=torch.float64))[0]
    parameters = [p for n, p in model.named_parameters() if n.startswith(('patch', 'layers.0'))]
    vectors = torch.randn(3, *level.shape, dtype=torch.float64)
    settings = dict(retain_graph=True)
    many = torch.autograd.grad(level, parameters, vectors, is_grads_batched=True, **settings)
    for i, vector in enumerate(vectors):
        for a, b in zip(
            many, torch.autograd.grad(level, parameters, vector, **settings), strict=True
        ):
            torch.testing.assert_close(a[i], b)


def test_gradients_in_batches():
    model = backbone().double().eval()
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)

    def means(inputs):
        return model(inputs)[1].mean((0, 2, 3))

    jacobians = [
        torch.autograd.functional.jacobian(means, images, vectorize=vectorize)
        for vectorize in (True, False)
    ]
    torch.testing.assert_close(*jacobians)
