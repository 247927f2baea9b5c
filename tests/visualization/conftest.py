import numpy as np
import pytest

from .. import tiny


@pytest.fixture(scope='session')
def backbone():
    return tiny.backbone('n12', patch_size=8)


@pytest.fixture(scope='session')
def classifier():
    return tiny.classifier('n12', patch_size=16, num_classes=10)


@pytest.fixture(scope='session')
def image():
    """Of an odd size: the last row and column of tokens extend beyond it."""
    return np.random.default_rng(0).integers(0, 256, (61, 93, 3), dtype=np.uint8)
