import numpy as np
import pytest
import torch

from xcit_mm.models import XCiT, XCiTClassifier


def randomize(model):
    """Weights with which every part matters: temperatures, LayerScale, biases, BatchNorm."""
    for name, parameter in model.named_parameters():
        if 'temperature' in name:
            torch.nn.init.uniform_(parameter, 0.5, 8)
        elif 'gamma' in name:
            torch.nn.init.uniform_(parameter, 0.2, 0.8)
        elif name.endswith('bias') or (name.startswith('cls_') and 'mlp' not in name):
            torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in model.named_buffers():
        if 'running_mean' in name:
            torch.nn.init.normal_(buffer, std=0.1)
        elif 'running_var' in name:
            torch.nn.init.uniform_(buffer, 0.5, 2)
    return model.eval()


@pytest.fixture(scope='session')
def backbone():
    torch.manual_seed(1)
    return randomize(XCiT('n12', patch_size=8))


@pytest.fixture(scope='session')
def classifier():
    torch.manual_seed(0)
    return randomize(XCiTClassifier('n12', patch_size=16, num_classes=10))


@pytest.fixture(scope='session')
def image():
    """Of an odd size: the last row and column of tokens extend beyond it."""
    return np.random.default_rng(0).integers(0, 256, (61, 93, 3), dtype=np.uint8)
