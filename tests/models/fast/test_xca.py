"""Both forms of cross-covariance attention are the paper's equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from xcit_mm.models.fast import (
    StatisticsSum,
    attention_from_statistics,
    linear_map,
    query_key_norms,
    statistics,
)
from xcit_mm.models.fast.xca import add_xca, choose_form, scaled_xca
from xcit_mm.models.layers import XCA

from ..cases import pieces
from ..rounding import bound, relative_error

FORMS = ('token', 'covariance')


def definition(xca, tokens):
    """``V · softmax(K̂ᵀ Q̂ / τ)`` for each sample and head, with rows for tokens as in the paper."""
    samples = []
    for x in tokens:
        heads = []
        queries, keys, values = F.linear(x, xca.qkv.weight, xca.qkv.bias).chunk(3, dim=1)
        parts = (t.chunk(xca.num_heads, dim=1) for t in (queries, keys, values))
        for q, k, v, temperature in zip(*parts, xca.temperature.flatten(), strict=True):
            q = q / q.norm(dim=0).clamp_min(1e-12)
            k = k / k.norm(dim=0).clamp_min(1e-12)
            heads.append(v @ (k.T @ q * temperature).softmax(dim=0))
        samples.append(F.linear(torch.cat(heads, dim=1), xca.proj.weight, xca.proj.bias))
    return torch.stack(samples)


def module(dims=48, heads=4, bias=True, dtype=torch.float32):
    torch.manual_seed(1)
    xca = XCA(dims, heads, bias).to(dtype)
    torch.nn.init.uniform_(xca.temperature, 0.5, 3)
    return xca


def run(xca, x, form, gamma=None):
    gamma = torch.ones(xca.embed_dims, dtype=x.dtype) if gamma is None else gamma
    return xca(x) if form == 'plain' else scaled_xca(x, xca, gamma, form)


def tolerance(xca, x):
    """Of the sums in XCA: projection, cross-covariance, attention, projection."""
    dims, heads = xca.embed_dims, xca.num_heads
    return bound(x.dtype, dims, x.shape[1], dims // heads, dims)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize(
    'dims, heads, tokens', [(48, 4, 7), (48, 1, 500), (96, 8, 2000), (384, 8, 1500)]
)
def test_every_form_equals_the_definition(dims, heads, tokens, bias, dtype):
    xca = module(dims, heads, bias, dtype)
    x = F.layer_norm(torch.randn(2, tokens, dims, dtype=dtype), (dims,))
    with torch.no_grad():
        outputs = {form: run(xca, x, form) for form in ('plain', *FORMS)}
        expected = definition(xca.double(), x.double())
    for form, output in outputs.items():
        assert relative_error(output, expected) < tolerance(xca, x), form


DEGENERATE = {
    'zero': lambda x: torch.zeros_like(x),
    'equal': lambda x: x[:, :1].expand_as(x).contiguous(),
    'one token': lambda x: x[:, :1],
    'one channel zero': lambda x: x * (torch.arange(x.shape[2]) != 3),
    'tiny': lambda x: x * 1e-6,
    'huge': lambda x: x * 1e4,
}


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('change', DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_tokens_agree_without_nan(change, bias):
    xca = module(bias=bias)
    x = change(F.layer_norm(torch.randn(2, 50, 48), (48,))).requires_grad_()
    outputs = []
    for form in FORMS:
        out = run(xca, x, form)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        assert torch.isfinite(out).all() and torch.isfinite(gradient).all()
        outputs.append(out)
    assert relative_error(*outputs[::-1]) < tolerance(xca, x) or outputs[0].norm() == 0


@pytest.mark.parametrize('form', FORMS)
def test_gradients_are_right(form):
    xca = module(dims=8, heads=2, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    gamma = torch.rand(8, dtype=torch.float64, requires_grad=True)

    def function(x, gamma, *_):
        return run(xca, x, form, gamma)

    assert torch.autograd.gradcheck(function, (x, gamma, *xca.parameters()))


def test_statistics_add_up_over_tiles():
    xca = module(dtype=torch.float64)
    x = torch.randn(1, 300, 48, dtype=torch.float64)
    tiles = sum(statistics(tile) for tile in x.split([50, 130, 120], dim=1))
    torch.testing.assert_close(tiles, statistics(x))
    assert tiles[0, -1, -1] == 300
    attention = attention_from_statistics(xca, tiles, xca.qkv.bias)
    queries, keys, _ = xca.project(x)
    torch.testing.assert_close(attention, xca.attention_map(queries, keys))
    norms = torch.cat([queries.flatten(1, 2), keys.flatten(1, 2)], dim=1).norm(dim=2)
    torch.testing.assert_close(query_key_norms(xca, tiles, xca.qkv.bias), norms)
    gamma = torch.rand(48, dtype=torch.float64)
    weight, bias = linear_map(xca, attention, xca.qkv.bias, gamma)
    torch.testing.assert_close(x @ weight.mT + bias[:, None], gamma * definition(xca, x))


def test_a_sum_of_statistics_continues_from_its_state():
    xca, norm = module(dtype=torch.float64), torch.nn.LayerNorm(48, dtype=torch.float64)
    x = torch.randn(2, 300, 48, dtype=torch.float64)
    with torch.no_grad(), pieces(7):
        resumed = StatisticsSum(xca, norm)
        resumed.load(StatisticsSum(xca, norm).add(x[:, :90]).state())
        S, bias = resumed.add(x[:, 90:]).result()
        origin = norm(x)[:, :1]
        torch.testing.assert_close(S, statistics(norm(x) - origin))
        torch.testing.assert_close(bias, xca.qkv(origin[:, 0]))


@pytest.mark.parametrize('form', FORMS)
def test_in_place_equals_the_branch(form):
    xca, norm = module(dtype=torch.float64), torch.nn.LayerNorm(48, dtype=torch.float64)
    x = torch.randn(2, 70, 48, dtype=torch.float64)
    gamma = torch.rand(48, dtype=torch.float64)
    with torch.no_grad():
        expected = x + gamma * xca(norm(x))
        add_xca(x, xca, norm, gamma, form)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize(
    'grad, batch, tokens, expected',
    [
        (False, 1, 196, 'token'),
        (False, 1, 4200, 'covariance'),
        (True, 1, 196, 'token'),
        (True, 8, 196, 'token'),
        (True, 1, 16800, 'covariance'),
    ],
)
def test_auto_takes_the_cheaper_form(grad, batch, tokens, expected):
    with torch.set_grad_enabled(grad):
        assert choose_form('auto', XCA(384, 8), torch.empty(batch, tokens, 384)) == expected


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 12),
    tokens=st.integers(1, 400),
    batch=st.integers(1, 3),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    transposed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_forms_agree_on_random_sizes_types_and_layouts(
    heads, width, tokens, batch, bias, dtype, transposed, seed
):
    dims = heads * width
    xca = module(dims, heads, bias, dtype)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, tokens, dims, dtype=dtype, generator=generator)
    x = x.mT.contiguous().mT if transposed else x
    with torch.no_grad():
        token, covariance = (run(xca, x, form) for form in FORMS)
    assert relative_error(covariance, token) < tolerance(xca, x)


def test_half_precision_does_not_overflow_at_375_000_tokens():
    xca = XCA(32, 4)
    tokens, gamma = torch.randn(1, 375_000, 32), torch.ones(32)
    with torch.no_grad():
        exact = scaled_xca(tokens, xca, gamma, 'covariance')
        with torch.autocast('cpu', dtype=torch.float16):
            low = scaled_xca(tokens, xca, gamma, 'covariance')
    assert torch.isfinite(low).all()
    # The statistics are in float32: what is left is the map of the tokens, a sum of 32 terms.
    assert relative_error(low, exact) < bound(torch.float16, 32)
