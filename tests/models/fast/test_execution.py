"""The fast executions run unchanged networks, and the plain modules run changed ones."""

import copy
import pickle

import pytest
import torch
from mmengine.model.utils import revert_sync_batchnorm
from torch import nn
from torch.nn.utils import parametrize, prune

from xcit_mm.models import XCiT
from xcit_mm.models.fast import Execution, choose_execution, chunks, execution
from xcit_mm.models.fast.execution import Differentiable, Inference
from xcit_mm.models.layers import XCA, ClassAttention
from xcit_mm.models.pyramid import Pyramid

from ...tiny import TINY, backbone, classifier
from ..rounding import relative_error

IMAGES = torch.randn(2, 3, 64, 48, generator=torch.Generator().manual_seed(0))


def kind_of(model):
    return type(choose_execution(model))


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('build', [backbone, classifier])
def test_training_and_inference_are_fast(build):
    model = build(drop_path_rate=0.1).train()
    assert kind_of(model) is Differentiable
    with torch.no_grad():
        assert kind_of(model) is Differentiable  # stochastic depth
        assert kind_of(model.eval()) is Inference
        # DINO's teacher: it has the statistics of the batch, and nothing is dropped.
        assert kind_of(build(drop_path_rate=0.0).train()) is Inference
    model.fast = False
    assert kind_of(model) is Execution


class Mine(XCA):
    pass


CHANGES = {
    'hook of a leaf': lambda m: m.layers[0].xca.qkv.register_forward_hook(lambda *_: None),
    'hook before': lambda m: m.layers[1].register_forward_pre_hook(lambda *_: None),
    'backward hook': lambda m: m.pyramid.levels[0].register_full_backward_hook(lambda *_: None),
    'parametrized': lambda m: parametrize.register_parametrization(
        m.layers[0].ffn.fc1, 'weight', nn.Identity()
    ),
    'pruned': lambda m: prune.identity(m.layers[0].lpi.conv1, 'weight'),
    'wrapped': lambda m: setattr(m.layers[0].ffn, 'fc2', nn.Sequential(m.layers[0].ffn.fc2)),
    'with a bias': lambda m: setattr(
        m.patch_embed.layers[0], 'conv', nn.Conv2d(3, 2, 3, stride=2, padding=1)
    ),
    'other padding': lambda m: setattr(m.layers[0].lpi.conv2, 'padding_mode', 'reflect'),
    'without a bias': lambda m: setattr(m.layers[0].xca.proj, 'bias', None),
    'a subclass': lambda m: setattr(m.layers[0], 'xca', Mine(16, 2)),
    'own forward': lambda m: setattr(
        m.layers[0].norm1, 'forward', copy.copy(m.layers[0].norm1.forward)
    ),
    'own method': lambda m: setattr(
        m.layers[1].xca, 'attention_map', lambda q, k: XCA.attention_map(m.layers[1].xca, q, k)
    ),
    'hooks of its own': lambda m: setattr(m.layers[0].norm1, '_forward_hooks', {0: print}),
    'replaced and hooked': lambda m: (
        setattr(m.layers[0], 'norm2', copy.deepcopy(m.layers[0].norm2)),
        m.layers[0].norm2.register_forward_hook(lambda *_: None),
    ),
    'fewer modules': lambda m: delattr(m.layers[1], 'drop_path'),
    'more modules': lambda m: m.layers[0].xca.add_module('extra', nn.Identity()),
    'other attention heads': lambda m: setattr(m.layers[1].xca, 'num_heads', 1),
    'other layers': lambda m: setattr(m, 'layers', nn.ModuleList(list(m.layers)[:1])),
    'a tensor for a parameter': lambda m: m.layers[0].norm3._parameters.update(
        weight=torch.ones(16)
    ),
    'compiled': lambda m: m.layers[0].ffn.compile(backend='eager'),
    'own run_layer': lambda m: setattr(m, 'run_layer', lambda *args: XCiT.run_layer(m, *args)),
}


@pytest.mark.parametrize('was_run', [False, True])
@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
def test_a_changed_module_is_called(change, was_run):
    model = backbone()
    if was_run:  # from then on, modules are compared with how they were
        assert kind_of(model) is Differentiable
    change(model)
    assert kind_of(model) is Execution
    with torch.no_grad():
        assert kind_of(model) is Execution


def test_a_replaced_module_is_compared_from_then_on():
    model = backbone()
    assert kind_of(model) is Differentiable
    model.layers[0] = copy.deepcopy(model.layers[0])
    assert kind_of(model) is Differentiable
    hook = model.layers[0].ffn.fc1.register_forward_hook(lambda *_: None)
    assert kind_of(model) is Execution
    hook.remove()
    assert kind_of(model) is Differentiable


def test_copies_are_compared_on_their_own():
    model = backbone()
    assert kind_of(model) is Differentiable
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kind_of(twin) is Differentiable
        twin.layers[1].lpi.conv1.register_forward_hook(print)
        assert kind_of(twin) is Execution
        assert kind_of(model) is Differentiable


def test_batch_norm_that_is_patched_after_a_run_is_called(monkeypatch):
    model = backbone()
    assert kind_of(model) is Differentiable
    forward = nn.BatchNorm2d.forward
    monkeypatch.setattr(nn.BatchNorm2d, 'forward', lambda self, x: forward(self, x))
    assert kind_of(model) is Execution


def test_a_changed_class_attention_is_called():
    attention = classifier()
    layer = attention.cls_layers[1]
    layer.attn.attention_map = copy.copy(layer.attn.attention_map)
    assert kind_of(attention) is Execution
    norm = classifier()
    norm.cls_layers[1].tokens_norm = not norm.cls_layers[1].tokens_norm
    assert kind_of(norm) is Execution


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('name', ['embed', 'run_layer', 'keep', 'finish'])
def test_what_a_subclass_overrides_is_called(name, grad):
    called = []

    def override(self, *arguments):
        called.append(name)
        return getattr(XCiT, name)(self, *arguments)

    model = backbone(kind=type('Mine', (XCiT,), {name: override}))
    with torch.set_grad_enabled(grad):
        model(IMAGES)
    assert called


@pytest.mark.parametrize(
    'kind, name',
    [(XCA, 'forward'), (XCA, 'attention_map'), (ClassAttention, 'project'), (Pyramid, 'forward')],
)
def test_a_class_that_is_patched_before_or_after_is_called(kind, name, monkeypatch):
    build = classifier if kind is ClassAttention else backbone
    before, method, called = build(), getattr(kind, name), []

    def patched(self, *arguments):
        called.append(self)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, patched)
    for model in (before, build()):
        called.clear()
        with torch.no_grad():
            model(IMAGES)
        assert len(called) >= sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize('out_channels', [1, 5])
def test_a_level_of_another_width(out_channels, monkeypatch):
    model = backbone()
    model.pyramid.levels[1][0] = nn.ConvTranspose2d(16, out_channels, 2, stride=2)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
    images = torch.randn(1, 3, 320, 64)
    with torch.no_grad():
        assert kind_of(model) is Inference
        level = model(images)[1]
        model.fast = False
        assert relative_error(level, model(images)[1]) < 1e-5
    assert level.shape[1] == out_channels


def test_a_level_is_replaced_by_its_position():
    model = backbone(strides=(8, 16))
    model.pyramid.levels[0] = nn.Identity()
    with torch.no_grad():
        assert [tuple(level.shape[2:]) for level in model(IMAGES)] == [(4, 3), (4, 3)]


@pytest.mark.parametrize(
    'convert',
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        # DDP has SyncBatchNorm; mmengine's inferencers turn it into a class of their own.
        nn.SyncBatchNorm.convert_sync_batchnorm,
        lambda model: revert_sync_batchnorm(nn.SyncBatchNorm.convert_sync_batchnorm(model)),
    ],
)
def test_copies_and_batch_norm_of_any_class_stay_fast(convert):
    model = backbone()
    with torch.no_grad():
        expected = model(IMAGES)
        model = convert(model).eval()  # torch before 2.3 forgets the mode of SyncBatchNorm
        assert kind_of(model) is Inference
        assert_close(model(IMAGES), expected)


def test_every_module_calls_its_hooks_and_results_are_the_same():
    model = backbone()
    with torch.no_grad():
        expected = model(IMAGES)
    names = {n for n, m in model.named_modules() if not isinstance(m, nn.ModuleList)}
    called, kept, handles = set(), [], []
    for name in names:
        module = model.get_submodule(name)
        handles.append(module.register_forward_hook(lambda *_, name=name: called.add(name)))
    handles.append(model.layers[0].register_forward_hook(lambda *call: kept.append(call[-1])))
    with torch.no_grad():
        assert_close(model(IMAGES), expected)
        (first,) = kept
        before = first.clone()
        model(IMAGES + 1)
    assert called == names
    assert torch.equal(first, before)  # what a hook keeps is never overwritten
    for handle in handles:
        handle.remove()
    assert kind_of(model) is not Execution


def test_hooks_for_all_modules_see_all_modules():
    model, seen = backbone(), set()
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.add(m))
    try:
        with torch.no_grad():
            model(IMAGES)
    finally:
        handle.remove()
    assert {m for m in model.modules() if not isinstance(m, nn.ModuleList)} == seen


@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(recompute_ffn=True)])
@pytest.mark.parametrize('fast', [True, False])
def test_a_graph_can_be_used_twice(fast, options):
    model = backbone(fast=fast, drop_path_rate=0.3, **options).double().train()
    levels = model(IMAGES.double())
    sum(level.square().mean() for level in levels).backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for level in levels:
        level.square().mean().backward(retain_graph=True)
    for p, expected in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, expected)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        assert norm.num_batches_tracked == 1 and norm.momentum == 0.1


@pytest.mark.parametrize(
    'arch, patch_size, size', [('s12', 16, (512, 672)), ('t12', 8, (333, 500))]
)
def test_whole_backbone_agrees_at_real_sizes(arch, patch_size, size):
    model = XCiT(arch, patch_size, fast=False).eval()
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        expected = model(images)
        model.fast = True
        for model.attention in ('token', 'covariance'):
            for a, b in zip(model(images), expected, strict=True):
                assert relative_error(a, b) < 1e-5


def test_stochastic_depth_alone_can_be_on():
    """Monte-Carlo dropout sets these modules to training, and nothing else."""
    model = backbone(dict(TINY['2 layers'], drop_path_rate=0.5))
    for layer in model.layers:
        layer.drop_path.train()
    with torch.no_grad():
        assert len({float(model(IMAGES)[0].double().sum()) for _ in range(20)}) > 1


class Samples:
    """Counts the samples that a function is given as its first argument."""

    def __init__(self, function):
        self.function, self.count = function, 0

    def __call__(self, x, *args):
        self.count += len(x)
        return self.function(x, *args)


@pytest.mark.parametrize('attention', ['token', 'covariance'])
@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize(
    'factors',
    [(0, 2, 2, 0), (2, 0, 2, 2), (0, 0, 0, 2), (2, 2, 2, 2), (0, 0, 0, 0), (2,), (0,)],
)
def test_dropped_samples_are_not_computed(factors, with_cp, attention, monkeypatch):
    """The result and all gradients are those of the plain layer, which computes them."""
    model = backbone(drop_path_rate=0.5, attention=attention, with_cp=with_cp).double().train()
    layer, grid = model.layers[0], (3, 4)
    x = torch.randn(len(factors), 12, 16, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(factors, dtype=torch.float64).view(-1, 1, 1)
    monkeypatch.setattr(layer.drop_path, 'forward', lambda x: x * scale)
    monkeypatch.setattr(execution, 'path_scales', lambda *_: [scale] * 3)
    counts = Samples(execution.scaled_xca), Samples(execution.feed_forward_residual)
    monkeypatch.setattr(execution, 'scaled_xca', counts[0])
    monkeypatch.setattr(execution, 'feed_forward_residual', counts[1])

    def results(kind):
        out = kind(model).run_layer(0, x, grid)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        # Gradients of zeros, not None: DistributedDataParallel waits for every parameter.
        return out, *torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])

    assert_close(results(Differentiable), results(Execution))
    num_kept = max(sum(factor != 0 for factor in factors), 1)
    assert [each.count for each in counts] == [num_kept * (1 + with_cp), num_kept]
