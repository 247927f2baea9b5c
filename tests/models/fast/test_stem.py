"""The stem over strips, with BatchNorm folded into the convolutions."""

import pytest
import torch

from xcit_mm.models.fast import chunks
from xcit_mm.models.fast.stem import add_positions, embed_for_training, embed_over_strips
from xcit_mm.models.layers import ConvPatchEmbed, SinusoidalPositionEncoding


def stem_of(patch_size):
    stem = ConvPatchEmbed(3, 32, patch_size, dict(type='BN')).double().eval()
    for layer in stem.layers:
        torch.nn.init.normal_(layer.norm.running_mean)
        torch.nn.init.uniform_(layer.norm.running_var, 0.5, 2)
    return stem


@pytest.mark.parametrize('rows', [1, 3])
@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('size', [(64, 64), (45, 61), (203, 37), (16, 16)])
def test_strips_equal_the_plain_stem(patch_size, size, rows, monkeypatch):
    monkeypatch.setattr(chunks, 'MIN_ROWS', rows)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
    stem, images = stem_of(patch_size), torch.randn(2, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected, grid = stem(images)
        for embed in (embed_over_strips, embed_for_training):
            tokens, found = embed(stem, images)
            assert found == grid
            torch.testing.assert_close(tokens, expected)


def test_positions_equal_the_plain_encoding():
    encoding = SinusoidalPositionEncoding(16).double()
    x = torch.randn(2, 15, 16, dtype=torch.float64)
    torch.testing.assert_close(add_positions(x, encoding, (3, 5)), x + encoding(3, 5))
