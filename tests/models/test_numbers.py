"""Images with invalid numbers, and half precision."""

import math

import pytest
import torch

from xcit_mm.models import XCiT

from .cases import HALVES, TINY, randomize

# Largest relative error of a level under autocast, as docs/backbone.md states it.
BOUNDS = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def backbone(arch, patch_size, **options):
    model = XCiT(arch, patch_size, **options).eval()
    randomize(model)
    return model


@pytest.mark.parametrize('dtype', [None, *HALVES])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize('attention', ['token', 'covariance'])
def test_a_spoilt_image_has_nan_features_and_leaves_the_others_alone(attention, value, dtype):
    model = backbone(TINY['4 layers'], 16, out_indices=(0, 1, 2, 3), attention=attention)
    images = torch.randn(3, 3, 64, 80)
    one_pixel, all_pixels = images.clone(), images.clone()
    one_pixel[1, 0, 20, 20] = all_pixels[1] = value
    with torch.no_grad(), torch.autocast('cpu', dtype, dtype is not None):
        expected = model(images)
        for spoilt in (one_pixel, all_pixels):
            for level, clean in zip(model(spoilt), expected, strict=True):
                assert not torch.isfinite(level[1]).any()
                assert torch.equal(level[[0, 2]], clean[[0, 2]])


def assert_half_precision_is_close(model, size):
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        exact = model(images)
        for dtype, bound in BOUNDS.items():
            with torch.autocast('cpu', dtype):
                levels = model(images)
            for level, reference in zip(levels, exact, strict=True):
                # Sums over the 192 million numbers of a level: in double precision.
                error = (level.double() - reference).norm() / reference.double().norm()
                assert error < bound


@pytest.mark.parametrize('arch', ['n12', 's12'])
def test_half_precision_is_close_at_512x512(arch):
    assert_half_precision_is_close(backbone(arch, 16), (512, 512))


@pytest.mark.long
def test_half_precision_is_close_at_24_megapixels():
    assert_half_precision_is_close(backbone('n12', 16), (4000, 6000))
