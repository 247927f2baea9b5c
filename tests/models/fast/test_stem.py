"""The stem over strips, with BatchNorm folded into the convolutions."""

import pytest
import torch

from xcit_mm.models.fast import add_positions
from xcit_mm.models.fast.stem import embed_for_training, embed_over_strips
from xcit_mm.models.layers import ConvPatchEmbed, SinusoidalPositionEncoding

from ...tiny import randomize
from ..cases import pieces


@pytest.mark.parametrize('rows', [1, 3])
@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('size', [(64, 64), (45, 61), (203, 37), (16, 16)])
def test_strips_equal_the_plain_stem(patch_size, size, rows):
    stem = randomize(ConvPatchEmbed(3, 32, patch_size, dict(type='BN'))).double().eval()
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    with torch.no_grad(), pieces(rows):
        expected, grid = stem(images)
        for embed in (embed_over_strips, embed_for_training):
            tokens, found = embed(stem, images)
            assert found == grid
            torch.testing.assert_close(tokens, expected)


def test_positions_of_all_and_of_some_rows_equal_the_plain_encoding():
    encoding = SinusoidalPositionEncoding(16).double()
    x = torch.randn(2, 15, 16, dtype=torch.float64)
    expected = x + encoding(3, 5)
    torch.testing.assert_close(add_positions(x, encoding, (3, 5)), expected)
    rows = add_positions(x[:, 5:10], encoding, (3, 5), start=1, stop=2)
    torch.testing.assert_close(rows, expected[:, 5:10])
