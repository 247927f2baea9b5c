"""The feed-forward branch over chunks, with its hand-written backward."""

import pytest
import torch

from xcit_mm.models.fast import feed_forward_residual
from xcit_mm.models.fast.feed_forward import add_feed_forward
from xcit_mm.models.layers import FeedForward

from ..cases import pieces


@pytest.fixture(autouse=True)
def several_chunks():
    with pieces(3):
        yield


def parts(hidden=12):
    ffn, norm = FeedForward(6, hidden).double(), torch.nn.LayerNorm(6).double()
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    torch.nn.init.uniform_(norm.bias, -1, 1)
    return ffn, norm, torch.rand(6, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize('recompute', [False, True])
@pytest.mark.parametrize('scaled', [False, True])
def test_value_and_gradients_are_right(recompute, scaled):
    ffn, norm, gamma = parts()
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.0, 2.0], dtype=torch.float64).view(2, 1, 1) if scaled else None

    def run(x, gamma, *_):
        return feed_forward_residual(x, ffn, norm, gamma, scale, recompute)

    expected = x + (1 if scale is None else scale) * gamma * ffn(norm(x))
    torch.testing.assert_close(run(x, gamma), expected)
    assert torch.autograd.gradcheck(run, (x, gamma, *ffn.parameters(), *norm.parameters()))


@pytest.mark.parametrize('hidden', [4, 400])  # with LayerScale folded into the weight, and without
def test_in_place_equals_the_branch(hidden):
    ffn, norm, gamma = parts(hidden)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = x + gamma * ffn(norm(x))
        add_feed_forward(x, ffn, norm, gamma)
    torch.testing.assert_close(x, expected)


def test_a_frozen_layer_keeps_no_hidden_layer(monkeypatch):
    ffn, norm, gamma = parts()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    sizes, new_empty = [], torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        'new_empty',
        lambda self, *size, **options: sizes.append(size) or new_empty(self, *size, **options),
    )
    for parameter in (gamma, *ffn.parameters(), *norm.parameters()):
        assert feed_forward_residual(x, ffn, norm, gamma).requires_grad
        parameter.requires_grad_(False)
    assert sizes == [(2, 5, 12)] * 7
    feed_forward_residual(x, ffn, norm, gamma)
    assert len(sizes) == 7
