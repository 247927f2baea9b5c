"""On a GPU: what can be shown without one, and what needs one (``make test-cuda``)."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from xcit_mm.models import XCiT
from xcit_mm.models.fast import choose_execution, covariance, fingerprint, xca
from xcit_mm.models.fast.chunks import batch_chunks
from xcit_mm.models.fast.execution import Differentiable, Inference
from xcit_mm.models.layers import XCA

from ..tiny import backbone
from .rounding import bound, relative_error

NEEDS_CUDA_BUILD = pytest.mark.skipif(
    torch.version.cuda is None, reason='this torch was built without CUDA'
)


def test_a_batch_is_not_taken_sample_by_sample():
    assert len(batch_chunks(torch.empty(8, 500, 64))) == 8
    assert batch_chunks(torch.empty(8, 500, 64, device='meta')) == [(slice(0, 8), slice(0, 500))]
    assert batch_chunks(torch.empty(0, 500, 64, device='meta')) == []


@pytest.mark.parametrize(
    'dtype, sums_in_float32, expected',
    [
        (torch.float32, False, 'covariance'),
        (torch.float16, False, 'token'),
        (torch.float16, True, 'covariance'),
        (torch.bfloat16, True, 'covariance'),
    ],
)
def test_half_precision_needs_sums_in_float32(dtype, sums_in_float32, expected, monkeypatch):
    monkeypatch.setattr(xca, 'sums_halves_in_float32', lambda device: sums_in_float32)
    tokens = SimpleNamespace(shape=(2, 4200, 384), device=torch.device('cuda'), dtype=dtype)
    assert xca.choose_form('auto', XCA(384, 8), tokens) == expected


@pytest.mark.parametrize(
    'dtype, grad, batch, tokens, expected',
    [
        (torch.float16, True, 2, 196, 'token'),
        (torch.float16, False, 2, 4200, 'token'),  # S12/16 at 800x1344: d³ steps in float32
        (torch.float16, True, 2, 4200, 'covariance'),
        (torch.float16, False, 2, 16800, 'covariance'),  # S12/8
        (torch.float16, True, 64, 196, 'token'),
        (torch.float32, False, 2, 4200, 'covariance'),
        (torch.float32, False, 1, 196, 'token'),
    ],
)
def test_auto_counts_bytes_kernels_and_precision(dtype, grad, batch, tokens, expected, monkeypatch):
    monkeypatch.setattr(xca, 'sums_halves_in_float32', lambda device: True)
    x = SimpleNamespace(shape=(batch, tokens, 384), device=torch.device('cuda'), dtype=dtype)
    with torch.set_grad_enabled(grad):
        assert xca.choose_form('auto', XCA(384, 8), x) == expected


def test_small_gradients_of_statistics_survive_float16(monkeypatch):
    """The backward pass of the statistics; its forward pass in half precision needs a GPU."""
    monkeypatch.setattr(covariance, 'second_moment', lambda x: x.mT.float() @ x.float())
    tokens = (torch.randn(2, 50, 8) * 1e4).half().requires_grad_()
    gradient = torch.randn(2, 8, 8) * 1e-7  # the least number of float16 is 6e-8
    covariance.SecondMoment.apply(tokens).backward(gradient)
    exact = tokens.detach().float() @ (gradient + gradient.mT)
    # Two factors, the scale and the product are rounded to float16.
    assert relative_error(tokens.grad.float(), exact) < 4 * torch.finfo(torch.float16).eps


def test_both_moments_are_of_the_same_rounded_tokens(monkeypatch):
    """Otherwise S need not be positive, nor the squared norms that follow from it."""
    monkeypatch.setattr(covariance, 'sums_halves_in_float32', lambda device: True)
    monkeypatch.setattr(covariance, 'second_moment', lambda x: x.mT.float() @ x.float())
    tokens = torch.randn(2, 40, 8) + 3
    origin = tokens[:, :1]
    with torch.autocast('cpu', torch.float16):
        X, S = covariance.augmented_statistics(tokens, origin)
        whole = covariance.statistics(tokens - origin)
    assert X.dtype == torch.float16 and torch.equal(X[..., 8:], torch.eye(1, 8).expand(2, 40, 8))
    rounded = torch.cat([(tokens - origin).half().double(), torch.ones(2, 40, 1)], dim=2)
    exact = rounded.mT @ rounded
    # Sums of 40 numbers in float32; of unrounded tokens, the error would be that of float16.
    for actual in (S, whole):
        assert relative_error(actual, exact) < bound(torch.float32, 40)
        assert relative_error(actual[:, -1], exact[:, -1]) < bound(torch.float32, 40)


@NEEDS_CUDA_BUILD
@pytest.mark.parametrize('autocast', [False, True])
@pytest.mark.parametrize('training', [False, True])
def test_forward_on_fake_tensors_of_a_gpu(training, autocast):
    with FakeTensorMode(), torch.device('cuda'):
        model = XCiT('t12', 16).train(training)
        model.as_built = fingerprint(model)
        images = torch.randn(2, 3, 512, 672)
        with torch.autocast('cuda', enabled=autocast), torch.set_grad_enabled(training):
            assert isinstance(choose_execution(model), Differentiable if training else Inference)
            levels = model(images)
    assert [tuple(level.shape[2:]) for level in levels] == [
        (512 // stride, 672 // stride) for stride in (4, 8, 16, 32)
    ]
    assert {level.device.type for level in levels} == {'cuda'}


def step(model, images, autocast=False):
    """Levels and gradients of a training step, on the CPU."""
    with torch.autocast(images.device.type, enabled=autocast):
        levels = model(images)
    sum(level.float().square().mean() for level in levels).backward()
    tensors = [*levels, *(parameter.grad for parameter in model.parameters())]
    return [tensor.detach().float().cpu() for tensor in tensors]


FORMS = pytest.mark.parametrize('attention', ['token', 'covariance'])


@pytest.mark.cuda
@FORMS
@pytest.mark.parametrize('training', [False, True])
def test_results_are_those_of_the_cpu(training, attention):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    images = torch.randn(2, 3, 96, 128)
    results = []
    for device in ('cpu', 'cuda'):
        model = backbone(attention=attention).to(device).train(training)
        results.append(step(model, images.to(device)))
    for actual, expected in zip(*results, strict=True):
        assert relative_error(actual, expected) < 1e-3 or expected.norm() < 1e-6


@pytest.mark.cuda
@FORMS
def test_a_step_under_autocast_is_near_that_in_float32(attention):
    images = torch.randn(2, 3, 256, 256, device='cuda')
    exact, low = (
        step(backbone(attention=attention).cuda().train(), images, autocast)
        for autocast in (False, True)
    )
    for a, b in zip(low, exact, strict=True):
        assert torch.isfinite(a).all()
        assert relative_error(a, b) < 0.1 or b.norm() < 1e-4


@pytest.mark.cuda
def test_a_step_takes_less_memory_than_timm():
    from dev.benchmark.candidates import build_backbone, build_step

    peaks = []
    for name in ('timm', 'ours'):
        model = build_backbone(name, 's12', 16).cuda()
        work = build_step('train', model, 800, 1344, device='cuda')
        work()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 0.6 * peaks[0]
