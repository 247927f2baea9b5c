"""Features over strips are those of the whole image."""

import numpy as np
import pytest
import torch
from torch import nn

from xcit_mm.errors import UserError
from xcit_mm.large import WholeImage, plan
from xcit_mm.large.images import ArrayImage
from xcit_mm.large.plan import TilingPlan
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
    return TilingPlan(grid, rows, tile, 0, on_disk)


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


def test_tokens_of_another_image_or_plan_are_not_mixed(tmp_path, monkeypatch):
    backbone = make_backbone(16)
    image = np.random.default_rng(0).standard_normal((80, 64, 3), np.float32)
    run = WholeImage(backbone, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(plan, 'MAX_ROWS', 2)
        levels = run(image)
        with torch.no_grad():
            assert_same(levels, backbone(as_batch(image)))
    # The first plan is kept: another one would round differently.
    assert run.plan(ArrayImage(image)).rows == 2
    with pytest.raises(UserError, match='unfinished work on another image'):
        run(image + 1)


def replace_a_module(backbone):
    backbone.layers[0].ffn.fc1 = nn.Sequential(backbone.layers[0].ffn.fc1)


@pytest.mark.parametrize(
    'options, change, error, message',
    [
        ({}, XCiT.train, ValueError, 'eval mode'),
        ({}, XCiT.double, ValueError, 'float32'),
        ({}, replace_a_module, ValueError, 'hooked, wrapped or replaced'),
        (dict(norm_cfg=dict(type='GN', num_groups=2)), XCiT.eval, UserError, 'BatchNorm'),
    ],
)
def test_backbones_that_cannot_run_in_pieces_are_refused(options, change, error, message):
    backbone = make_backbone(16, **options)
    change(backbone)
    with pytest.raises(error, match=message):
        WholeImage(backbone)


@pytest.mark.parametrize(
    'shape, message', [((8, 64, 3), 'at least one patch'), ((80, 64, 2), 'has 2 channels')]
)
def test_images_that_do_not_fit_the_backbone_are_refused(shape, message):
    with pytest.raises(UserError, match=message):
        WholeImage(make_backbone(16))(np.zeros(shape, np.float32))
