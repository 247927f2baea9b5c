"""Features over strips are those of the whole image."""

import numpy as np
import pytest
import torch

from xcit_mm.errors import TooSmallError, UserError
from xcit_mm.large import WholeImage
from xcit_mm.large.plan import Plan
from xcit_mm.models import XCiT

ARCH = dict(embed_dims=16, depth=4, num_heads=2, layer_scale_init=1.0)


def make_backbone(patch_size, **options):
    backbone = XCiT(ARCH, patch_size, out_indices=(0, 1, 2, 3), **options)
    backbone.init_weights()
    with torch.no_grad():
        for name, buffer in backbone.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5) if 'var' in name else buffer.normal_()
    return backbone.eval()


def as_batch(image):
    return torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]


def plan_of(backbone, image, rows, tile=0, on_disk=False):
    grid = tuple(-(-n // backbone.patch_size) for n in image.shape[:2])
    return Plan(grid, rows, tile, 0, on_disk)


def assert_same(levels, expected):
    for level, reference in zip(levels, expected, strict=True):
        assert level.size == tuple(reference.shape[2:])
        scale = reference.abs().max()
        torch.testing.assert_close(level.whole() / scale, reference / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('on_disk', [False, True])
def test_features_are_those_of_the_whole_image(patch_size, on_disk, tmp_path):
    generator = np.random.default_rng(patch_size + on_disk)
    backbone = make_backbone(patch_size)
    for i in range(4):
        height, width = generator.integers(patch_size, 14 * patch_size, 2)
        image = generator.standard_normal((height, width, 3), np.float32)
        with torch.no_grad():
            expected = backbone(as_batch(image))
        rows = int(generator.integers(1, 6))
        run = WholeImage(backbone, folder=tmp_path / str(i) if on_disk else None)
        assert_same(run(image, plan_of(backbone, image, rows, on_disk=on_disk)), expected)


def test_tokens_of_another_image_or_plan_are_not_mixed(tmp_path):
    backbone = make_backbone(16)
    image = np.random.default_rng(0).standard_normal((80, 64, 3), np.float32)
    run = WholeImage(backbone, folder=tmp_path)
    first = [level.whole() for level in run(image, plan_of(backbone, image, 2, on_disk=True))]
    # The first plan is kept: another one would round differently.
    again = [level.whole() for level in run(image, plan_of(backbone, image, 5, on_disk=True))]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(UserError, match='unfinished work on another image'):
        run(image + 1)
    with pytest.raises(TooSmallError, match='at least one patch'):
        WholeImage(backbone)(image[:8])
    with pytest.raises(UserError, match='has 2 channels'):
        WholeImage(backbone)(image[..., :2])
    with pytest.raises(ValueError, match='eval mode'):
        WholeImage(backbone.train())
