"""Compiled layers: any image size and batch, few graphs, and the results of the plain network."""

import functools
import random
import time

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn
from torch._dynamo.utils import counters

from xcit_mm.models import XCiT
from xcit_mm.models.fast import choose_execution, compiled, operators

from ... import tiny
from ..rounding import FACTOR, bound, relative_error

SIZES = [(2, 64, 48), (3, 97, 33), (2, 40, 130)]
# Sums one after another: a layer, four layers and pyramid. Backward has about twice as many.
LENGTHS = (24, 100, 8, 24, 9, 9, 24, 96) * 4 + (24, 24)
# torch compiles for a batch of one and for all others.
MAX_GRAPHS = 2


@pytest.fixture(autouse=True)
def no_graphs():
    """Start without graphs, and count those of this test."""
    torch.compiler.reset()
    compiled._compiled.cache_clear()
    counters.clear()
    yield
    torch.compiler.reset()
    compiled._compiled.cache_clear()


@pytest.fixture
def quick(monkeypatch):
    """Compile without Inductor, which takes seconds per graph: the same graphs, run as they are."""
    compile_quickly = functools.partial(torch.compile, dynamic=True, backend='aot_eager')
    monkeypatch.setattr(compiled, '_compiled', functools.cache(compile_quickly))


def num_graphs():
    return counters['stats']['unique_graphs']


def pair(**options):
    """A compiled backbone, and the plain one with the same weights."""
    model = tiny.backbone('4 layers', compile=True, **options)
    plain = tiny.backbone('4 layers', fast=False, **options)
    return model, plain


def results(model, images, grad, autocast=None):
    """Levels, gradients and BatchNorm's statistics after a forward pass or a training step."""
    torch.manual_seed(0)  # for stochastic depth
    model.zero_grad()
    with (
        torch.set_grad_enabled(grad),
        torch.autocast('cpu', autocast or torch.bfloat16, enabled=autocast is not None),
    ):
        levels = model(images)
    gradients = []
    if grad:
        sum(level.float().square().mean() for level in levels).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
    # Not one by one: the gradient of a bias before BatchNorm is zero but for rounding.
    many = [tensors for tensors in (gradients, [*model.buffers()]) if tensors]
    return [*levels, *(torch.cat([tensor.flatten() for tensor in each]) for each in many)]


def assert_equal_to_plain(model, plain, images, grad, autocast=None):
    lengths = LENGTHS * (3 if grad else 1)
    tolerance = bound(torch.float32, *lengths)
    if autocast is not None:
        # The sums are those of float32. Each is rounded once to bfloat16, in another place.
        tolerance = FACTOR * torch.finfo(autocast).eps / 2 * len(lengths) ** 0.5
    actual, expected = (results(each, images, grad, autocast) for each in (model, plain))
    for a, b in zip(actual, expected, strict=True):
        assert relative_error(a, b) < tolerance


@pytest.mark.parametrize(
    'grad', [pytest.param(False, marks=pytest.mark.long), True], ids=['inference', 'training']
)
def test_one_graph_of_inductor_serves_all_layers_and_sizes(grad):
    model, plain = (m.train(grad) for m in pair(attention='covariance', drop_path_rate=0.3 * grad))
    for batch, *size in SIZES:
        images = torch.randn(batch, 3, *size)
        assert_equal_to_plain(model, plain, images, grad)
        assert num_graphs() == 1
    assert not counters['graph_break']


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize(
    'options, autocast',
    [
        pytest.param(dict(attention='token'), torch.bfloat16, marks=pytest.mark.long),
        (dict(with_cp=True), None),
        pytest.param(dict(norm_eval=True, frozen_stages=2), None, marks=pytest.mark.long),
        pytest.param(dict(with_cp=True), torch.bfloat16, marks=pytest.mark.long),
        pytest.param(dict(recompute_ffn=True, qkv_bias=False), None, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_training_options(options, autocast):
    options = dict(attention='covariance', drop_path_rate=0.3) | options
    model, plain = (m.train() for m in pair(**options))
    for batch, *size in [*SIZES, (1, 64, 80), (1, 70, 90)]:
        images = torch.randn(batch, 3, *size)
        assert_equal_to_plain(model, plain, images, True, autocast)
    # Frozen layers, the first trained one and the others have graphs of their own.
    kinds = 3 if 'frozen_stages' in options else 1
    assert num_graphs() <= MAX_GRAPHS * kinds


def test_weights_are_cast_together_as_autocast_casts_them_one_by_one():
    weight = torch.randn(5, 4).mT.requires_grad_()  # of another layout
    tensors = [weight, torch.randn(3, requires_grad=True)]
    torch.library.opcheck(compiled.cast_together, (tensors, torch.bfloat16))
    together = compiled.cast_together(tensors, torch.bfloat16)
    alone = [tensor.to(torch.bfloat16) for tensor in tensors]
    factors = [torch.randn(tensor.shape).bfloat16() for tensor in tensors]
    gradients = [torch.autograd.grad(each, tensors, factors) for each in (together, alone)]
    for a, b in zip([*together, *gradients[0]], [*alone, *gradients[1]], strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


@pytest.mark.usefixtures('quick')
def test_the_cheaper_form_is_chosen_outside_of_the_graph(monkeypatch):
    model, plain = pair()
    forms = []
    choose = compiled.choose_form
    monkeypatch.setattr(
        compiled, 'choose_form', lambda *args: forms.append(choose(*args)) or forms[-1]
    )
    for side in (32, 800):
        assert_equal_to_plain(model, plain, torch.randn(1, 3, side, side), False)
    assert forms == ['token'] * 4 + ['covariance'] * 4
    assert num_graphs() == 2


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize(
    'grad, build, compile_it',
    [
        (False, tiny.backbone, torch.compile),
        (True, tiny.backbone, lambda model: model.compile() or model),
        (False, tiny.classifier, torch.compile),
    ],
)
def test_a_user_compiles_the_network(grad, build, compile_it):
    model = build('2 layers').train(grad)
    plain = build('2 layers', fast=False).train(grad)
    compiled_model = compile_it(model)
    for batch, *size in SIZES[:2]:
        images = torch.randn(batch, 3, *size)
        with torch.set_grad_enabled(grad):
            actual, expected = compiled_model(images), plain(images)
        for a, b in zip(actual, expected, strict=True):
            assert relative_error(a, b) < bound(torch.float32, *LENGTHS)
    assert num_graphs() == 1


def test_a_user_may_compile_a_single_graph_of_the_plain_network():
    model = tiny.backbone(fast=False)
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        actual = torch.compile(model, backend='aot_eager', fullgraph=True)(images)
        for a, b in zip(actual, model(images), strict=True):
            assert relative_error(a, b) < bound(torch.float32, *LENGTHS)
        with pytest.raises(torch._dynamo.exc.Unsupported, match='fast=False'):
            torch.compile(tiny.backbone(), backend='aot_eager', fullgraph=True)(images)


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize('by_user', [False, True])
def test_a_changed_module_runs_as_it_is(by_user):
    model = tiny.backbone(compile=not by_user)
    run = torch.compile(model) if by_user else model
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        before = run(images)
        seen = []
        hook = model.layers[1].ffn.fc1.register_forward_hook(lambda *_: seen.append(1))
        run(images)
        assert seen == [1]
        hook.remove()
        model.layers[0].lpi.conv1 = nn.Sequential(model.layers[0].lpi.conv1, nn.Flatten(0, 0))
        model.layers[0].xca.proj = nn.Sequential(model.layers[0].xca.proj, nn.Tanh())
        assert not torch.equal(run(images)[0], before[0])


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize(
    'options, graphs',
    [
        (dict(attention='token', drop_path_rate=0.3), 2),
        pytest.param(dict(attention='covariance', recompute_ffn=True), 2, marks=pytest.mark.long),
        (dict(attention='token', with_cp=True), 0),
    ],
    ids=str,
)
def test_batch_norm_that_synchronizes_runs_between_two_graphs(options, graphs, monkeypatch):
    # On CPUs it cannot synchronize; what is compiled around it does not depend on that.
    monkeypatch.setattr(compiled, 'synchronizes', lambda norm: True)
    model, plain = (m.train() for m in pair(**options))
    for batch, *size in SIZES:
        assert_equal_to_plain(model, plain, torch.randn(batch, 3, *size), True)
    assert num_graphs() == graphs


def test_an_old_torch_and_slow_modules_say_what_is_needed(monkeypatch):
    with pytest.raises(ValueError, match='compile=True needs fast=True'):
        XCiT('n12', compile=True, fast=False)
    monkeypatch.setattr(operators, 'MIN_TORCH_TO_COMPILE', '99.0')
    with pytest.raises(ValueError, match=r'compile=True needs PyTorch 99\.0 or newer'):
        MODELS.build(dict(type='XCiT', arch='n12', compile=True))


@pytest.mark.usefixtures('quick')
def test_export_sees_the_plain_network():
    model = tiny.backbone(compile=True)
    images = torch.randn(2, 3, 64, 48)
    for strict in (False, True):
        graph = torch.export.export(model, (images,), strict=strict).graph_module
        assert not any('xcit_mm' in str(node.target) for node in graph.graph.nodes)
    assert type(choose_execution(model, images)) is compiled.CompiledDifferentiable


@pytest.mark.long
@pytest.mark.parametrize(
    'grad, options, attention, autocast',
    [
        (False, {}, 'covariance', None),
        (False, {}, 'token', torch.bfloat16),
        (True, {}, 'covariance', None),
        (True, {}, 'covariance', torch.bfloat16),
        (True, {}, 'token', None),
        (True, dict(with_cp=True), 'covariance', torch.bfloat16),
        (True, dict(with_cp=True), 'token', None),
    ],
)
def test_fifty_sizes(grad, options, attention, autocast, capsys):
    options = dict(attention=attention, drop_path_rate=0.3 * grad, **options)
    model, plain = (m.train(grad) for m in pair(**options))
    draw = random.Random(0)
    start, seconds = time.perf_counter(), {}
    for step in range(50):
        batch = (2, 1)[step] if step < 2 else draw.randint(1, 4)
        size = (64, 80) if step < 2 else (draw.randint(16, 200), draw.randint(16, 200))
        images = torch.randn(batch, 3, *size)
        if grad and batch * images.shape[2] * images.shape[3] < 2 * 33**2:
            continue  # BatchNorm needs more than one value per channel, on every level
        assert_equal_to_plain(model, plain, images, grad, autocast)
        if step == 1:
            warm = num_graphs()
            seconds['warm-up'] = time.perf_counter() - start
    assert num_graphs() == warm <= MAX_GRAPHS and not counters['graph_break']
    with capsys.disabled():
        print(f'\n{warm} graphs, {seconds["warm-up"]:.0f} s for the warm-up')
