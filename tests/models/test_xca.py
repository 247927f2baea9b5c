"""The two forms of cross-covariance attention are the same function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from xcit_mm.models import XCiT
from xcit_mm.models.blocks import XCiTLayer
from xcit_mm.models.xca import XCA, apply_attention, attention_from_statistics, statistics


def definition(xca, tokens):
    """The paper's equations, word for word."""
    b, n, d = tokens.shape
    q, k, v = F.linear(tokens, xca.qkv.weight, xca.qkv.bias).chunk(3, -1)
    q, k, v = (t.view(b, n, xca.num_heads, -1).permute(0, 2, 3, 1) for t in (q, k, v))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    attention = (q @ k.transpose(-2, -1) * xca.temperature).softmax(-1)
    out = (attention @ v).permute(0, 3, 1, 2).reshape(b, n, d)
    return F.linear(out, xca.proj.weight, xca.proj.bias)


def module(dims=48, heads=4, bias=True, attention='token', dtype=torch.float32):
    torch.manual_seed(1)
    xca = XCA(dims, heads, bias, attention).to(dtype)
    with torch.no_grad():
        xca.temperature.uniform_(0.5, 3)
    return xca


def twins(**kwargs):
    return module(attention='token', **kwargs), module(attention='covariance', **kwargs)


def error(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize('dtype, bound', [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize(
    'dims, heads, tokens', [(48, 4, 7), (48, 1, 500), (96, 8, 2000), (384, 8, 1500)]
)
def test_both_forms_equal_the_definition(dims, heads, tokens, bias, dtype, bound):
    token, covariance = twins(dims=dims, heads=heads, bias=bias, dtype=dtype)
    x = F.layer_norm(torch.randn(2, tokens, dims, dtype=dtype), (dims,))
    with torch.no_grad():
        expected = definition(token.double(), x.double()).to(dtype)
        token.to(dtype)
        assert error(token(x), expected) < bound
        assert error(covariance(x), expected) < bound
        assert error(token(x), covariance(x)) < bound


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('kind', ['zero', 'equal', 'one token', 'one channel zero', 'tiny', 'huge'])
def test_degenerate_tokens_agree_without_nan(kind, bias):
    token, covariance = twins(bias=bias)
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
    for form in (token, covariance):
        out = form(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        assert torch.isfinite(out).all() and torch.isfinite(gradient).all()
        outputs.append(out.detach())
    assert error(outputs[1], outputs[0]) < 1e-6 or outputs[0].norm() == 0


@pytest.mark.parametrize('attention', ['token', 'covariance'])
def test_gradients_are_right(attention):
    xca = module(dims=8, heads=2, attention=attention, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    gamma = torch.rand(8, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*xca.named_parameters(), strict=True)

    def run(x, gamma, *values):
        return torch.func.functional_call(xca, dict(zip(names, values, strict=True)), (x, gamma))

    assert torch.autograd.gradcheck(run, (x, gamma, *parameters))


def test_statistics_add_up_over_tiles():
    xca = module()
    x = torch.randn(1, 300, 48)
    S = statistics(x)
    tiles = sum(statistics(tile) for tile in x.split([50, 130, 120], dim=1))
    torch.testing.assert_close(tiles, S, rtol=1e-5, atol=1e-4)
    assert S[0, -1, -1] == 300
    weights = (xca.qkv.weight, xca.qkv.bias)
    attention = attention_from_statistics(tiles, *weights, xca.temperature)
    out = apply_attention(x, attention, *weights, xca.proj.weight, xca.proj.bias)
    assert error(out, definition(xca, x)) < 2e-6
    assert error(attention, module(attention='token').attention_map(x)) < 1e-5


def test_auto_takes_the_cheaper_form():
    xca = XCA(384, 8)
    with torch.no_grad():
        assert xca.form(196) == 'token' and xca.form(4200) == 'covariance'
    assert xca.form(196) == 'token' and xca.form(16800) == 'covariance'
    assert XCA(384, 8, attention='covariance').form(1) == 'covariance'


@pytest.mark.parametrize('recompute', [False, True])
@pytest.mark.parametrize('scaled', [False, True])
def test_feed_forward_gradients_are_right(recompute, scaled, monkeypatch):
    from xcit_mm.models import chunks
    from xcit_mm.models.feed_forward import FeedForward, feed_forward_residual

    monkeypatch.setattr(chunks, 'MIN_TOKENS', 3)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)  # several chunks
    ffn = FeedForward(6, 12).double()
    norm = torch.nn.LayerNorm(6).double()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-1, 1)
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    gamma = torch.rand(6, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.0, 2.0], dtype=torch.float64).view(2, 1, 1) if scaled else None
    parameters = [*ffn.parameters(), *norm.parameters()]

    def run(x, gamma, *_):
        return feed_forward_residual(x, norm, ffn, gamma, scale, recompute)

    with torch.no_grad():
        plain = x + (1 if scale is None else scale) * gamma * ffn(norm(x))
    torch.testing.assert_close(run(x, gamma), plain)
    assert torch.autograd.gradcheck(run, (x, gamma, *parameters))


@pytest.mark.parametrize('grid', [(1, 1), (3, 5), (40, 7), (100, 9)])
@pytest.mark.parametrize('attention', ['token', 'covariance'])
def test_layer_in_pieces_equals_layer_as_a_whole(grid, attention, monkeypatch):
    """Inference over chunks and strips against the same layer with autograd on."""
    from xcit_mm.models import chunks

    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 2**12)
    layer = XCiTLayer(32, 4, 4, True, 0.0, 0.7, dict(type='BN'), attention, False, False).eval()
    for tensor in (layer.lpi.norm.running_mean, layer.lpi.norm.bias):
        torch.nn.init.normal_(tensor)
    x = torch.randn(2, grid[0] * grid[1], 32)
    whole = layer(x, grid).detach()
    with torch.no_grad():
        pieces = layer(x, grid)
    assert error(pieces, whole) < 2e-6


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('size', [(64, 64), (45, 61), (203, 37), (16, 16)])
def test_stem_over_strips_equals_stem_as_a_whole(patch_size, size, monkeypatch):
    from xcit_mm.models import chunks
    from xcit_mm.models.stem import ConvPatchEmbed

    monkeypatch.setattr('xcit_mm.models.stem.MIN_ROWS', 1)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
    stem = ConvPatchEmbed(3, 32, patch_size, dict(type='BN')).eval()
    for layer in stem.layers:
        torch.nn.init.normal_(layer.norm.running_mean)
        torch.nn.init.uniform_(layer.norm.running_var, 0.5, 2)
    images = torch.randn(2, 3, *size)
    whole, grid = stem(images)
    with torch.no_grad():
        strips, strip_grid = stem(images)
    assert grid == strip_grid
    assert error(strips, whole.detach()) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 12),
    tokens=st.integers(1, 400),
    batch=st.integers(1, 3),
    bias=st.booleans(),
    double=st.booleans(),
    transposed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_forms_agree_on_random_sizes_types_and_layouts(
    heads, width, tokens, batch, bias, double, transposed, seed
):
    dtype = torch.float64 if double else torch.float32
    token, covariance = twins(dims=heads * width, heads=heads, bias=bias, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads * width, tokens) if transposed else (batch, tokens, heads * width)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    x = x.transpose(1, 2) if transposed else x
    with torch.no_grad():
        assert error(covariance(x), token(x)) < (1e-12 if double else 3e-6)


@pytest.mark.parametrize(
    'arch, patch_size, size', [('s12', 16, (512, 672)), ('t12', 8, (333, 500))]
)
def test_whole_backbone_agrees_in_both_forms_at_real_sizes(arch, patch_size, size):
    models = [XCiT(arch, patch_size, attention=form).eval() for form in ('token', 'covariance')]
    models[1].load_state_dict(models[0].state_dict())
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        for a, b in zip(*(model(images) for model in models), strict=True):
            assert error(b, a) < 1e-5
