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

from ..tiny import backbone


def plan_of(model, image, rows, tile=0):
    """A plan with small pieces, for a small image."""
    grid = tuple(-(-n // model.patch_size) for n in image.shape[:2])
    return TilingPlan(grid, rows, tile, 0, on_disk=False)


def assert_same(levels, model, image):
    with torch.no_grad():
        expected = model(torch.from_numpy(image).permute(2, 0, 1)[None])
    for level, reference in zip(levels, expected, strict=True):
        assert level.size == tuple(reference.shape[2:])
        scale = reference.abs().max()
        torch.testing.assert_close(level.whole() / scale, reference / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize('patch_size', [8, 16])
@pytest.mark.parametrize('on_disk', [False, True])
def test_features_are_those_of_the_whole_image(patch_size, on_disk, tmp_path):
    generator = np.random.default_rng(patch_size + on_disk)
    model = backbone('4 layers', patch_size)
    for i in range(4):
        height, width = generator.integers(patch_size, 14 * patch_size, 2)
        image = generator.standard_normal((height, width, 3), np.float32)
        run = WholeImage(model, folder=tmp_path / str(i) if on_disk else None)
        rows = int(generator.integers(1, 6))
        assert_same(run(image, plan_of(model, image, rows)), model, image)


def test_tokens_of_another_image_or_plan_are_not_mixed(tmp_path, monkeypatch):
    model = backbone()
    image = np.random.default_rng(0).standard_normal((80, 64, 3), np.float32)
    run = WholeImage(model, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(plan, 'MAX_ROWS', 2)
        assert_same(run(image), model, image)
    # The first plan is kept: another one would round differently.
    assert run.plan(ArrayImage(image)).rows == 2
    with pytest.raises(UserError, match='unfinished work on another image'):
        run(image + 1)


def wrap_a_module(model):
    model.layers[0].ffn.fc1 = nn.Sequential(model.layers[0].ffn.fc1)


@pytest.mark.parametrize(
    'options, change, error, message',
    [
        ({}, XCiT.train, ValueError, 'eval mode'),
        ({}, XCiT.double, ValueError, 'float32'),
        ({}, wrap_a_module, ValueError, 'hooked, wrapped or replaced'),
        (dict(norm_cfg=dict(type='GN', num_groups=1)), XCiT.eval, UserError, 'BatchNorm'),
    ],
)
def test_backbones_that_cannot_run_in_pieces_are_refused(options, change, error, message):
    model = backbone(**options)
    change(model)
    with pytest.raises(error, match=message):
        WholeImage(model)


@pytest.mark.parametrize(
    'shape, message', [((8, 64, 3), 'at least one patch'), ((80, 64, 2), 'has 2 channels')]
)
def test_images_that_do_not_fit_the_backbone_are_refused(shape, message):
    with pytest.raises(UserError, match=message):
        WholeImage(backbone())(np.zeros(shape, np.float32))
