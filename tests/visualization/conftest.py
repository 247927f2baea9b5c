import numpy as np
import pytest

from xcit_mm.models import XCiT, XCiTClassifier

from ..models.cases import randomize


@pytest.fixture(scope='session')
def backbone():
    return randomized(XCiT('n12', patch_size=8))


@pytest.fixture(scope='session')
def classifier():
    return randomized(XCiTClassifier('n12', patch_size=16, num_classes=10))


@pytest.fixture(scope='session')
def image():
    """Of an odd size: the last row and column of tokens extend beyond it."""
    return np.random.default_rng(0).integers(0, 256, (61, 93, 3), dtype=np.uint8)


def randomized(model):
    """Weights with which every part matters: temperatures, LayerScale, biases, BatchNorm."""
    randomize(model)
    return model.eval()
