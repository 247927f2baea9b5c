"""Images with invalid numbers, and half precision."""

import math

import pytest
import torch

from ..tiny import backbone
from .cases import HALVES

# Largest relative error of a level under autocast, as docs/backbone.md states it.
BOUNDS = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
FORMS = pytest.mark.parametrize('attention', ['token', 'covariance'])


@pytest.mark.parametrize('dtype', [None, *HALVES])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, 1e30])
@FORMS
def test_a_spoilt_image_has_nan_features_and_leaves_the_others_alone(attention, value, dtype):
    model = backbone('4 layers', attention=attention)
    images = torch.randn(3, 3, 64, 80)
    one_pixel, all_pixels = images.clone(), images.clone()
    one_pixel[1, 0, 20, 20] = all_pixels[1] = value
    with torch.no_grad(), torch.autocast('cpu', dtype, dtype is not None):
        expected = model(images)
        for spoilt in (one_pixel, all_pixels):
            for level, clean in zip(model(spoilt), expected, strict=True):
                assert not torch.isfinite(level[1]).any()
                assert torch.equal(level[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize(
    'arch, size',
    [
        ('n12', (512, 512)),
        ('s12', (512, 512)),
        pytest.param('n12', (4000, 6000), marks=pytest.mark.long),
    ],
)
def test_half_precision_is_close(arch, size):
    model, images = backbone(arch), torch.randn(1, 3, *size)
    with torch.no_grad():
        exact = model(images)
        for dtype, bound in BOUNDS.items():
            with torch.autocast('cpu', dtype):
                levels = model(images)
            for level, reference in zip(levels, exact, strict=True):
                # Sums over the 192 million numbers of a level: in double precision.
                error = (level.double() - reference).norm() / reference.double().norm()
                assert error < bound


@pytest.mark.parametrize('dtype', HALVES)
@FORMS
def test_a_step_in_half_precision_has_finite_gradients(attention, dtype):
    model = backbone(attention=attention).train()
    with torch.autocast('cpu', dtype):
        loss = sum(level.float().square().mean() for level in model(torch.randn(2, 3, 96, 96)))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
