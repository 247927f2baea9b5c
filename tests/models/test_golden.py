"""Parity with the authors' released implementation, on tensors that it computed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from xcit_mm.models import XCiT, XCiTClassifier

DATA = Path(__file__).parents[1] / 'data'
ARCH = dict(embed_dims=32, depth=4, num_heads=4, layer_scale_init=1.0, drop_path_rate=0.0)


def load(name):
    arrays = np.load(DATA / f'{name}.npz')
    state = {k[6:]: torch.from_numpy(arrays[k]) for k in arrays.files if k.startswith('state/')}
    return arrays, state


def relative_error(actual, expected):
    expected = torch.from_numpy(np.asarray(expected))
    return ((actual - expected).norm() / expected.norm()).item()


def dense(patch_size, **kwargs):
    return XCiT(ARCH, patch_size, out_indices=(0, 1, 2, 3), **kwargs)


# The plain modules, and the fast execution in both forms of attention.
EXECUTIONS = pytest.mark.parametrize(
    'execution',
    [dict(fast=False), dict(attention='token'), dict(attention='covariance')],
    ids=['plain', 'token', 'covariance'],
)


@EXECUTIONS
@pytest.mark.parametrize('with_grad', [False, True])
@pytest.mark.parametrize('name, patch_size', [('dense_p16_64x96', 16), ('dense_p8_45x61', 8)])
def test_every_level_equals_the_released_network(name, patch_size, with_grad, execution):
    arrays, state = load(name)
    model = dense(patch_size, **execution).eval()
    model.load_state_dict(state)
    with torch.set_grad_enabled(with_grad):
        levels = model(torch.from_numpy(arrays['input']))
    assert len(levels) == 4
    for i, level in enumerate(levels):
        assert level.shape == arrays[f'out{i}'].shape
        assert relative_error(level.detach(), arrays[f'out{i}']) < 1e-5


@EXECUTIONS
@pytest.mark.parametrize('options', [{}, {'with_cp': True}, {'recompute_ffn': True}])
def test_training_outputs_and_all_gradients_equal_the_released_network(execution, options):
    arrays, state = load('dense_p16_64x96')
    model = dense(16, **execution, **options).train()
    model.load_state_dict(state)
    images = torch.from_numpy(arrays['input']).requires_grad_()
    levels = model(images)
    loss = sum(level.square().mean() for level in levels)
    loss.backward()
    for i, level in enumerate(levels):
        assert relative_error(level.detach(), arrays[f'train_out{i}']) < 1e-4
    assert relative_error(loss.detach(), arrays['train_loss']) < 1e-4
    assert relative_error(images.grad, arrays['grad/input']) < 1e-4
    # The gradients have the released names: load them as if they were weights.
    expected = dense(16)
    released = {k[5:]: torch.from_numpy(arrays[k]) for k in arrays.files if k.startswith('grad/')}
    released.pop('input')
    assert len(released) == len(list(model.parameters()))
    expected.load_state_dict({**state, **released})
    # The gradient of a bias before BatchNorm is only rounding: compare it with the largest one.
    floor = 1e-3 * max(gradient.norm().item() for gradient in expected.parameters())
    for (name, parameter), (_, gradient) in zip(
        model.named_parameters(), expected.named_parameters(), strict=True
    ):
        scale = max(gradient.norm().item(), floor)
        assert (parameter.grad - gradient).norm().item() / scale < 1e-4, name


@EXECUTIONS
def test_logits_equal_the_released_classifier(execution):
    arrays, state = load('cls_p16_tokensnorm1')
    model = XCiTClassifier({**ARCH, 'tokens_norm': True}, num_classes=10, **execution).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        logits = model(torch.from_numpy(arrays['input']))
    assert relative_error(logits, arrays['logits']) < 1e-5
