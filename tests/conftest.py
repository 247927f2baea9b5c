import json
import socket

import pytest
import torch

from xcit_mm.datasets import make_shapes


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@pytest.fixture(scope='session')
def small_data(tmp_path_factory):
    """A few images in the layouts of COCO and ADE20k, with five of COCO's own class names."""
    root = make_shapes(tmp_path_factory.mktemp('data') / 'small', train=8, val=4, size=96)
    names = ('person', 'bicycle', 'car', 'motorcycle', 'airplane')
    for path in (root / 'coco' / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        for category, name in zip(content['categories'], names, strict=True):
            category['name'] = name
        path.write_text(json.dumps(content))
    return root
