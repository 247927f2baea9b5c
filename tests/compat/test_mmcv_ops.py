"""The operators in use give what a compiled mmcv gave: outputs and gradients, empty sets included.

``tests/data/mmcv_ops.npz`` has the results of a compiled mmcv, from ``python -m dev.operators``.
The tests run with compiled operators, with torchvision's, and, for plain PyTorch, everywhere.
"""

import subprocess
import sys

import mmcv.ops
import numpy as np
import pytest
import torch
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)

from dev.operators import FILE, all_cases, numbers, random_boxes
from xcit_mm.compat import mmcv_ops, torchvision_ops
from xcit_mm.compat.mmcv_ops import ext
from xcit_mm.errors import UserError

CASES = all_cases()
OURS = sys.modules.get('mmcv._ext') is ext
# Sums of at most a few hundred products of numbers around 1, in another order.
TOLERANCE = 1e-5
needs_torchvision = pytest.mark.skipif(
    not torchvision_ops.load(), reason="torchvision's operators cannot be loaded next to this torch"
)


@pytest.fixture(scope='module')
def stored():
    with np.load(FILE) as file:
        return dict(file)


def check(name, results, stored):
    keys = {key.partition(':')[2] for key in stored if key.startswith(f'{name}:')}
    assert set(results) == keys
    for key, value in results.items():
        expected = torch.from_numpy(stored[f'{name}:{key}'])
        assert value.shape == expected.shape and value.dtype == expected.dtype, key
        torch.testing.assert_close(value.detach(), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize('name', CASES)
def test_operator_in_use_gives_what_compiled_mmcv_gave(name, stored):
    check(name, CASES[name](), stored)


def test_every_case_is_stored(stored):
    assert {key.partition(':')[0] for key in stored} >= set(CASES)


@pytest.fixture
def stand_in(monkeypatch):
    """mmcv's Python with our operators, whatever it has of its own."""
    for module in ('nms', 'roi_align', 'deform_conv', 'modulated_deform_conv', 'focal_loss'):
        monkeypatch.setattr(sys.modules[f'mmcv.ops.{module}'], 'ext_module', ext)
    monkeypatch.setattr(sys.modules['mmcv.ops.multi_scale_deform_attn'], 'ext_module', ext)


@pytest.mark.skipif(OURS, reason='these are the operators in use')
@pytest.mark.parametrize('name', CASES)
def test_our_operators_beside_compiled_ones(name, stored, stand_in):
    if 'soft_nms' not in name and not torchvision_ops.load():
        pytest.skip("torchvision's operators cannot be loaded next to this torch")
    check(name, CASES[name](), stored)


def focal_loss(logits, target, weight, gamma, alpha):
    """The definition, in float64."""
    p = logits.sigmoid()
    one_hot = torch.nn.functional.one_hot(target, logits.shape[1] + 1)[:, :-1].bool()
    loss = torch.where(
        one_hot, -alpha * (1 - p) ** gamma * p.log(), -(1 - alpha) * p**gamma * (1 - p).log()
    )
    return loss if weight is None else loss * weight[target][:, None]


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('gamma, alpha', [(2.0, 0.25), (1.5, 0.6)])
def test_sigmoid_focal_loss_is_the_definition_and_its_gradient(stand_in, gamma, alpha, weighted):
    """Against the definition: a compiled mmcv has this operator on GPUs only."""
    logits = (3 * numbers(20, 5, seed=0)).requires_grad_()
    target = torch.arange(20) % (5 if weighted else 6)  # 5 is the background
    weight = torch.linspace(0.5, 2, 5) if weighted else None
    loss = mmcv.ops.sigmoid_focal_loss(logits, target, gamma, alpha, weight, 'mean')
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    expected = focal_loss(exact, target, weight, gamma, alpha).sum() / len(target)
    expected.backward()
    torch.testing.assert_close(loss, expected.float(), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(logits.grad, exact.grad.float(), rtol=TOLERANCE, atol=TOLERANCE)


def test_deformable_attention_is_mmcvs_own_with_gradients(stand_in):
    shapes = torch.tensor([[4, 3], [2, 2]])
    inputs = [
        numbers(2, 16, 2, 4, seed=0),
        torch.rand(2, 5, 2, 2, 3, 2),
        torch.rand(2, 5, 2, 2, 3),
    ]
    ours, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    output = MultiScaleDeformableAttnFunction.apply(
        ours[0], shapes, torch.tensor([0, 12]), *ours[1:], 64
    )
    expected = multi_scale_deformable_attn_pytorch(theirs[0], shapes, *theirs[1:])
    assert output.equal(expected)
    grad = numbers(*output.shape, seed=1)
    output.backward(grad)
    expected.backward(grad)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad.equal(b.grad) and a.grad.abs().sum() > 0


@needs_torchvision
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(stand_in, dtype):
    rois = torch.cat([torch.zeros(6, 1), random_boxes(6, 0, size=16)], 1).to(dtype)
    features = numbers(1, 3, 16, 16, seed=1).to(dtype)
    half, full = features.clone().requires_grad_(), features.float().requires_grad_()
    output = mmcv.ops.roi_align(half, rois, 4, 1.0, 0, 'avg', True)
    expected = mmcv.ops.roi_align(full, rois.float(), 4, 1.0, 0, 'avg', True)
    assert output.dtype == dtype and output.equal(expected.to(dtype))
    output.sum().backward()
    expected.sum().backward()
    assert (half.grad.float() - full.grad).abs().max() < 1e-2


def test_any_other_operator_says_which_and_why_and_what_to_do(stand_in):
    with pytest.raises(UserError, match=r'softmax_focal_loss_forward .*mmcv-lite.*OPS=compiled'):
        mmcv.ops.softmax_focal_loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(UserError, match=r"roi_align with pool_mode='max' is missing"):
        mmcv.ops.roi_align(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5), 2, 1.0, 0, 'max', True)
    with pytest.raises(AttributeError):
        ext.__wrapped__  # noqa: B018


def test_every_operator_that_mmcv_asks_for_exists():
    asked = [name for name in dir(sys.modules['mmcv._ext']) if not name.startswith('_')]
    assert 'nms' in asked and all(callable(getattr(ext, name)) for name in asked)


def test_operators_that_exist_are_left_alone():
    before = sys.modules['mmcv._ext']
    assert mmcv_ops.apply() is False and sys.modules['mmcv._ext'] is before


def test_nothing_is_provided_without_torchvision(tmp_path):
    """mmcv without its compiled module, and no torchvision: mmcv says itself what is missing."""
    code = (
        'import importlib.util as u, sys; find = u.find_spec\n'
        'hidden = ("torchvision", "mmcv._ext")\n'
        'u.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)\n'
        'import xcit_mm; from xcit_mm.compat import mmcv_ops\n'
        'print(mmcv_ops.apply(), type(sys.modules.get("mmcv._ext")).__name__)'
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.split()[0] == 'False', run.stderr
