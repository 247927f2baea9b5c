"""The fast executions run unchanged networks, and the plain modules run changed ones."""

import copy
import pickle

import pytest
import torch
from mmengine.model.utils import revert_sync_batchnorm
from torch import nn
from torch.nn.utils import parametrize, prune

from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.models.fast import chunks
from xcit_mm.models.fast.execution import Differentiable, Execution, Inference, choose_execution
from xcit_mm.models.layers import XCA, ClassAttention
from xcit_mm.models.pyramid import Pyramid

from ..cases import TINY, randomize
from ..rounding import relative_error

ARCH = TINY['2 layers']


def backbone(**options):
    model = XCiT(ARCH, 16, out_indices=(0, 1), strides=(4, 8), **options)
    randomize(model)
    return model


def classifier(**options):
    return XCiTClassifier(ARCH, num_classes=3, **options)


@pytest.mark.parametrize('build', [backbone, classifier])
def test_training_and_inference_are_fast(build):
    model = build(drop_path_rate=0.1).train()
    assert isinstance(choose_execution(model), Differentiable)
    with torch.no_grad():
        assert isinstance(choose_execution(model), Differentiable)  # stochastic depth
        assert isinstance(choose_execution(model.eval()), Inference)
        # DINO's teacher: it has the statistics of the batch, and nothing is dropped.
        assert isinstance(choose_execution(build(drop_path_rate=0.0).train()), Inference)
    assert isinstance(choose_execution(model), Differentiable)
    model.fast = False
    assert type(choose_execution(model)) is Execution


def hook_a_leaf(model):
    model.layers[0].xca.qkv.register_forward_hook(lambda *_: None)


def hook_before(model):
    model.layers[1].register_forward_pre_hook(lambda *_: None)


def hook_backward(model):
    model.pyramid.levels[0].register_full_backward_hook(lambda *_: None)


def parametrize_a_weight(model):
    parametrize.register_parametrization(model.layers[0].ffn.fc1, 'weight', nn.Identity())


def prune_a_weight(model):
    prune.identity(model.layers[0].lpi.conv1, 'weight')


def replace_a_layer(model):
    class Wrapped(nn.Linear):
        pass

    model.layers[0].ffn.fc2 = Wrapped(64, 16)


def replace_by_other_settings(model):
    model.patch_embed.layers[0].conv = nn.Conv2d(3, 2, 3, stride=2, padding=1, bias=True)


def replace_by_other_padding(model):
    model.layers[0].lpi.conv2.padding_mode = 'reflect'


def remove_a_bias(model):
    model.layers[0].xca.proj.bias = None


def replace_attention(model):
    class Mine(XCA):
        pass

    model.layers[0].xca = Mine(16, 2)


def patch_forward(model):
    norm = model.layers[0].norm1
    norm.forward = copy.copy(norm.forward)


def patch_a_method(model):
    xca = model.layers[1].xca
    xca.attention_map = lambda queries, keys: XCA.attention_map(xca, queries, keys)


def override_by_an_instance(model):
    model.run_layer = lambda *arguments: XCiT.run_layer(model, *arguments)


@pytest.mark.parametrize(
    'change',
    [
        hook_a_leaf,
        hook_before,
        hook_backward,
        parametrize_a_weight,
        prune_a_weight,
        replace_a_layer,
        replace_by_other_settings,
        replace_by_other_padding,
        remove_a_bias,
        replace_attention,
        patch_forward,
        patch_a_method,
        override_by_an_instance,
    ],
)
def test_a_changed_module_is_called(change):
    model = backbone().eval()
    change(model)
    assert type(choose_execution(model)) is Execution
    with torch.no_grad():
        assert type(choose_execution(model)) is Execution


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('name', ['embed', 'run_layer', 'keep', 'finish'])
def test_what_a_subclass_overrides_is_called(name, grad):
    called = []

    def override(self, *arguments):
        called.append(name)
        return getattr(super(Mine, self), name)(*arguments)

    Mine = type('Mine', (XCiT,), {name: override})
    model = Mine(ARCH, 16, out_indices=(0, 1), strides=(4, 8)).eval()
    with torch.set_grad_enabled(grad):
        model(torch.randn(1, 3, 64, 64))
    assert called


@pytest.mark.parametrize(
    'kind, name',
    [
        (XCA, 'forward'),
        (XCA, 'project'),
        (XCA, 'attention_map'),
        (ClassAttention, 'project'),
        (ClassAttention, 'attention_map'),
        (Pyramid, 'forward'),
    ],
)
def test_a_class_that_is_patched_before_or_after_is_called(kind, name, monkeypatch):
    def build():
        if kind is ClassAttention:
            return XCiTClassifier(ARCH, 16, num_classes=2).eval()
        return backbone().eval()

    before, method, called = build(), getattr(kind, name), []

    def patched(self, *arguments):
        called.append(self)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, patched)
    for model in (before, build()):
        called.clear()
        with torch.no_grad():
            model(torch.randn(1, 3, 64, 64))
        assert len(called) >= sum(isinstance(module, kind) for module in model.modules())


def test_stochastic_depth_alone_can_be_on():
    """Monte-Carlo dropout sets these modules to training, and nothing else."""
    model = backbone(drop_path_rate=0.5).eval()
    images = torch.randn(1, 3, 64, 64)
    for layer in model.layers:
        layer.drop_path.train()
    with torch.no_grad():
        assert len({float(model(images)[0].double().sum()) for _ in range(20)}) > 1


@pytest.mark.parametrize('out_channels', [1, 5])
def test_a_level_of_another_width(out_channels, monkeypatch):
    model = XCiT(ARCH, 16, out_indices=(0, 1), strides=(4, 8)).eval()
    model.pyramid.levels[1][0] = nn.ConvTranspose2d(16, out_channels, 2, stride=2)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
    images = torch.randn(1, 3, 320, 64)
    with torch.no_grad():
        assert isinstance(choose_execution(model), Inference)
        level = model(images)[1]
        model.fast = False
        assert relative_error(level, model(images)[1]) < 1e-5
    assert level.shape[1] == out_channels


def test_a_level_is_replaced_by_its_position():
    model = XCiT(ARCH, 16, out_indices=(0, 1), strides=(8, 16)).eval()
    model.pyramid.levels[0] = nn.Identity()
    with torch.no_grad():
        levels = model(torch.randn(1, 3, 64, 64))
    assert [tuple(level.shape[2:]) for level in levels] == [(4, 4), (4, 4)]


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_stay_fast(copied):
    model = copied(backbone().eval())
    with torch.no_grad():
        assert isinstance(choose_execution(model), Inference)


@pytest.mark.parametrize('convert', [nn.SyncBatchNorm.convert_sync_batchnorm, copy.deepcopy])
def test_batch_norm_in_any_class_stays_fast(convert):
    """DDP has SyncBatchNorm; mmengine's inferencers turn it into a class of their own."""
    model = revert_sync_batchnorm(convert(backbone(norm_cfg=dict(type='SyncBN')))).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert isinstance(choose_execution(model), Inference)
        levels = model(images)
        model.fast = False
        for a, b in zip(levels, model(images), strict=True):
            assert relative_error(a, b) < 1e-5


def test_a_hook_that_was_removed_does_not_slow_the_network_down():
    model = backbone().eval()
    model.layers[0].register_forward_hook(lambda *_: None).remove()
    assert type(choose_execution(model)) is not Execution


def test_every_module_calls_its_hooks_and_results_are_the_same():
    model = backbone(drop_path_rate=0.0).eval()
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        expected = model(images)
    called = set()
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            module.register_forward_hook(lambda *_, name=name: called.add(name))
    with torch.no_grad():
        actual = model(images)
    names = {n for n, m in model.named_modules() if not isinstance(m, nn.ModuleList)}
    assert called == names
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_tensors_that_a_hook_keeps_are_never_overwritten():
    model = backbone().eval()
    kept = []
    model.layers[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 64))
        (first,) = kept
        copy_of_first = first.clone()
        model(torch.randn(1, 3, 64, 64))
    assert torch.equal(first, copy_of_first) and len(kept) == 2


def test_hooks_for_all_modules_see_all_modules():
    model = backbone().eval()
    seen = set()
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.add(m))
    try:
        with torch.no_grad():
            model(torch.randn(1, 3, 64, 64))
    finally:
        handle.remove()
    assert {m for m in model.modules() if not isinstance(m, nn.ModuleList)} == seen


def test_a_tracer_sees_the_plain_network():
    model = backbone().eval()
    images = torch.randn(2, 3, 64, 64)
    expected = model(images)
    traced = torch.jit.trace(model, images)
    for a, b in zip(traced(images), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('options', [{}, dict(with_cp=True), dict(recompute_ffn=True)])
@pytest.mark.parametrize('fast', [True, False])
def test_a_graph_can_be_used_twice(fast, options):
    model = backbone(fast=fast, **options).double().train()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.manual_seed(3)
    levels = model(images)
    sum(level.square().mean() for level in levels).backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for level in levels:
        level.square().mean().backward(retain_graph=True)
    for p, expected in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, expected)
    for buffer in (m.num_batches_tracked for m in model.modules() if hasattr(m, 'momentum')):
        assert buffer == 1


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
