"""The count of a training step: autograd's graph walked in Python does what torch's engine does."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from dev import gpu_cost
from dev.benchmark.candidates import build_backbone
from xcit_mm.models.fast import fingerprint

pytest.importorskip('timm')


def test_gradients_are_those_of_the_engine():
    model = build_backbone('ours', 'n12').double().train()
    images = torch.randn(2, 3, 48, 64, dtype=torch.float64, requires_grad=True)
    levels = model(images)
    inputs = [images, *model.parameters()]
    loss = levels[0].square().sum() + F.gelu(levels[-1]).sum() + (levels[1] * images.mean()).sum()
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    with gpu_cost.python_autograd():
        actual = torch.autograd.grad(loss, inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)  # but for the order of sums, in float64


@pytest.mark.parametrize(
    'name, options',
    [('timm', {}), ('ours', {}), ('ours', dict(with_cp=True)), ('ours', dict(attention='token'))],
    ids=str,
)
def test_kernels_are_those_of_the_engine(name, options):
    found = []
    for autograd in (nullcontext, gpu_cost.python_autograd):
        with torch.device('meta'):
            model = build_backbone(name, 'n12', **options).train()
            images = torch.empty(2, 3, 48, 64)
        if name == 'ours':
            model.as_built = fingerprint(model)
        with gpu_cost.Counter() as counter, autograd():
            levels = model(images)
            forward = len(counter.kernels)
            torch.autograd.backward(levels, [torch.ones_like(level) for level in levels])
        found.append(Counter(counter.kernels))
        assert len(counter.kernels) > 2 * forward
    assert found[0] == found[1]
