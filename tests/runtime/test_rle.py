"""Run-length encoding, against pycocotools."""

import numpy as np
import pytest
from pycocotools import mask as coco

from xcit_mm_runtime import rle


@pytest.mark.parametrize('share', [0.0, 0.001, 0.5, 0.999, 1.0])
@pytest.mark.parametrize('shape', [(1, 1), (1, 300), (300, 1), (37, 61), (400, 700)])
def test_masks_are_encoded_as_by_pycocotools(shape, share):
    mask = np.random.default_rng(0).random(shape) < share
    mask[shape[0] // 3 : shape[0] // 2] = share > 0  # long runs, too
    expected = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert rle.encode(mask) == {'size': list(shape), 'counts': expected['counts'].decode()}
