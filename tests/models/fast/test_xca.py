"""Both forms of cross-covariance attention are the paper's equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from xcit_mm.models.fast.covariance import (
    StatisticsSum,
    attention_from_statistics,
    linear_map,
    query_key_norms,
    statistics,
)
from xcit_mm.models.fast.xca import add_xca, choose_form, scaled_xca
from xcit_mm.models.layers import XCA

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
    with torch.no_grad():
        xca.temperature.uniform_(0.5, 3)
    return xca


def run(xca, x, form, gamma=None):
    gamma = torch.ones(xca.embed_dims, dtype=x.dtype) if gamma is None else gamma
    return xca(x) if form == 'plain' else scaled_xca(x, xca, gamma, form)


def lengths(dims, heads, tokens):
    """Of the sums in XCA: projection, cross-covariance, attention, projection."""
    return dims, tokens, dims // heads, dims


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize(
    'dims, heads, tokens', [(48, 4, 7), (48, 1, 500), (96, 8, 2000), (384, 8, 1500)]
)
def test_every_form_equals_the_definition(dims, heads, tokens, bias, dtype):
    xca = module(dims, heads, bias, dtype)
    x = F.layer_norm(torch.randn(2, tokens, dims, dtype=dtype), (dims,))
    tolerance = bound(dtype, *lengths(dims, heads, tokens))
    with torch.no_grad():
        outputs = {form: run(xca, x, form) for form in ('plain', *FORMS)}
        expected = definition(xca.double(), x.double())
    for form, output in outputs.items():
        assert relative_error(output, expected) < tolerance, form


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('kind', ['zero', 'equal', 'one token', 'one channel zero', 'tiny', 'huge'])
def test_degenerate_tokens_agree_without_nan(kind, bias):
    xca = module(bias=bias)
    x = F.layer_norm(torch.randn(2, 50, 48), (48,))
    if kind == 'zero':
        x = torch.zeros(2, 50, 48)
    elif kind == 'equal':
        x = x[:, :1].expand(-1, 50, -1).contiguous()
    elif kind == 'one token':
        x = x[:, :1]
    elif kind == 'one channel zero':
        x[..., 3] = 0
    elif kind == 'tiny':
        x = x * 1e-6
    elif kind == 'huge':
        x = x * 1e4
    x.requires_grad_()
    outputs = []
    for form in FORMS:
        out = run(xca, x, form)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        assert torch.isfinite(out).all() and torch.isfinite(gradient).all()
        outputs.append(out)
    tolerance = bound(torch.float32, *lengths(48, 4, x.shape[1]))
    assert relative_error(outputs[1], outputs[0]) < tolerance or outputs[0].norm() == 0


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


def test_chunked_statistics_are_those_of_all_tokens(monkeypatch):
    from xcit_mm.models.fast import chunks

    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
    xca, norm = module(dtype=torch.float64), torch.nn.LayerNorm(48, dtype=torch.float64)
    x = torch.randn(2, 300, 48, dtype=torch.float64)
    with torch.no_grad():
        S, bias = StatisticsSum(xca, norm).add(x).result()
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


def test_auto_takes_the_cheaper_form():
    xca = XCA(384, 8)

    def choice(tokens, batch=1):
        return choose_form('auto', xca, torch.empty(batch, tokens, 384))

    with torch.no_grad():
        assert choice(196) == 'token'
        assert choice(4200) == 'covariance'
    assert choice(196) == choice(196, batch=8) == 'token'
    assert choice(16800) == 'covariance'
    assert choose_form('covariance', xca, torch.empty(1, 1, 384)) == 'covariance'


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
    shape = (batch, dims, tokens) if transposed else (batch, tokens, dims)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    x = x.transpose(1, 2) if transposed else x
    with torch.no_grad():
        token, covariance = (run(xca, x, form) for form in FORMS)
    assert relative_error(covariance, token) < bound(dtype, *lengths(dims, heads, tokens))


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
