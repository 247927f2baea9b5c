"""DeiT with other attention: cases in which each equals full attention or a direct sum."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from dev.deit import (
    ATTENTIONS,
    AxialAttention,
    EfficientAttention,
    FullAttention,
    LinformerAttention,
    SpatialReductionAttention,
    build_timm_classifier,
    count_flops,
)
from tests.tiny import ROOT

timm = pytest.importorskip('timm')
D, HEADS = 24, 3
TINY = dict(img_size=32, patch_size=8, embed_dim=D, depth=2, num_heads=HEADS, num_classes=5)
# Sums of at most 40 products of numbers near 1, in float64.
CLOSE = dict(rtol=1e-10, atol=1e-12)


def pair(kind, grid, **options):
    """Full attention and another one, with the same projections."""
    torch.manual_seed(0)
    full = FullAttention(D, HEADS, grid).double()
    other = kind(D, HEADS, grid, **options).double()
    other.load_state_dict(full.state_dict(), strict=False)
    return full, other


def tokens(grid, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, grid[0] * grid[1] + 1, D, generator=generator, dtype=torch.float64)


def test_full_attention_is_timms():
    torch.manual_seed(0)
    theirs = timm.create_model('deit_small_patch16_224', **TINY).double().eval()
    ours = build_timm_classifier('deit_small_patch16_224', 'full', **TINY).double().eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images), **CLOSE)


@pytest.mark.parametrize('reduction', ['pool', 'conv'])
def test_spatial_reduction_by_one_is_full_attention(reduction):
    full, other = pair(SpatialReductionAttention, (4, 6), reduction=reduction, ratio=1)
    x = tokens((4, 6))
    torch.testing.assert_close(other(x), full(x), **CLOSE)


def test_spatial_reduction_of_equal_neighbors_is_full_attention_of_the_coarse_grid():
    full, other = pair(SpatialReductionAttention, (4, 6))
    other.norm = nn.Identity()
    coarse = tokens((2, 3))
    full.grid = (2, 3)
    grid = coarse[:, 1:].unflatten(1, (2, 3))
    fine = grid.repeat_interleave(2, 1).repeat_interleave(2, 2)
    found = other(torch.cat([coarse[:, :1], fine.flatten(1, 2)], 1))
    expected = full(coarse)
    torch.testing.assert_close(found[:, 0], expected[:, 0], **CLOSE)
    corners = found[:, 1:].unflatten(1, (4, 6))[:, ::2, ::2].flatten(1, 2)
    torch.testing.assert_close(corners, expected[:, 1:], **CLOSE)


def test_a_convolution_can_be_an_average():
    _, pool = pair(SpatialReductionAttention, (4, 6), reduction='pool')
    _, conv = pair(SpatialReductionAttention, (4, 6), reduction='conv')
    with torch.no_grad():
        conv.reduction.weight.copy_(torch.eye(D)[:, :, None, None].expand(-1, -1, 2, 2) / 4)
        conv.reduction.bias.zero_()
    x = tokens((4, 6))
    torch.testing.assert_close(conv(x), pool(x), **CLOSE)


def test_linformer_with_identities_is_full_attention():
    full, other = pair(LinformerAttention, (3, 4), length=13)
    with torch.no_grad():
        other.key_map.weight.copy_(torch.eye(13))
        other.value_map.weight.copy_(torch.eye(13))
    x = tokens((3, 4))
    torch.testing.assert_close(other(x), full(x), **CLOSE)


def test_efficient_attention_is_its_formula():
    """Token i gets the sum over j and channels c of softmax_c(q_i) softmax_j(k_c) v_j."""
    _, attention = pair(EfficientAttention, (3, 4))
    x = tokens((3, 4))
    q, k, v = attention.qkv(x).chunk(3, dim=-1)
    heads = []
    for part in range(HEADS):
        mine = slice(part * D // HEADS, (part + 1) * D // HEADS)
        weights = torch.einsum('bic,bjc->bij', q[..., mine].softmax(2), k[..., mine].softmax(1))
        heads.append(weights @ v[..., mine])
        # It is an average, as any attention.
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 13).double(), **CLOSE)
    expected = attention.proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x), expected, **CLOSE)


def test_axial_attention_on_one_row_is_full_attention():
    full, other = pair(AxialAttention, (1, 7))
    x = tokens((1, 7))
    torch.testing.assert_close(other(x), full(x), **CLOSE)


def test_axial_attention_is_a_product_of_two_masked_attentions():
    rows, columns = grid = (3, 4)
    _, attention = pair(AxialAttention, grid)
    x = tokens(grid)
    place = torch.arange(rows * columns)
    in_row, in_column = torch.eye(13, dtype=torch.bool), torch.eye(13, dtype=torch.bool)
    in_row[0], in_row[:, 0] = True, True
    in_row[1:, 1:] = (place // columns)[:, None] == place // columns
    in_column[1:, 1:] = (place % columns)[:, None] == place % columns
    q, k, v = attention.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / (D // HEADS) ** 0.5
    for mask in (in_row, in_column):
        v = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
    expected = attention.proj(v.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, **CLOSE)


def test_counted_products_are_those_of_the_formulas():
    n, side, ratio = 64, 8, 2
    tokens, few, length = n + 1, n // ratio**2 + 1, side
    linear = 4 * tokens * D**2
    reduced = 2 * tokens * D**2 + 2 * few * D**2 + 2 * tokens * few * D
    expected = dict(
        full=linear + 2 * tokens**2 * D,
        sra_pool=reduced,
        sra_conv=reduced + n * D**2,
        linformer=linear + 4 * tokens * length * D,
        efficient=linear + 2 * tokens * D**2 // HEADS,
        axial=linear + 2 * n * (side + 1) * D + 2 * n * side * D + 2 * tokens * D,
    )
    for name, build in ATTENTIONS.items():
        with torch.device('meta'):
            attention = build(D, HEADS, (side, side))
        assert count_flops(attention, 1, tokens, D) == expected[name], name


@pytest.mark.parametrize('name', ATTENTIONS)
def test_configs_of_three_lines_train_at_every_size(name):
    path = ROOT / f'dev/configs/deit_s_16_{"in1k" if name == "full" else name}.py'
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    if name != 'full':
        assert len(path.read_text(encoding='utf-8').splitlines()) == 3
        assert cfg.model.backbone.attention == name
    cfg.model.backbone.update(attention=name, **TINY)
    model = MODELS.build(cfg.model)
    model.init_weights()
    for size in (32, 48):
        images, labels = torch.randn(2, 3, size, size), torch.tensor([0, 1])
        if name == 'linformer' and size != 32:
            with pytest.raises(ValueError, match='Linformer has weights for a grid'):
                model.loss(images, labels)
            continue
        model.loss(images, labels)['loss'].backward()
        assert all(p.grad is not None for p in model.parameters())
        model.zero_grad()
