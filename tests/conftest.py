import json
import os
import socket

import pytest
import torch
from hypothesis import settings

from xcit_mm.datasets.shapes import make_shapes

if 'PYTEST_XDIST_WORKER' in os.environ:
    # Tests side by side, and the processes that they start, share the cores.
    os.environ['OMP_NUM_THREADS'] = '1'
    torch.set_num_threads(1)

# The same cases in every run of CI; new ones, and ten times as many, in long runs.
settings.register_profile('default', deadline=None, derandomize=True)
settings.register_profile('long', deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'default'))


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
    """A few images in the layouts of COCO, with COCO's own categories, and of ADE20k."""
    from mmdet.datasets import CocoDataset

    root = make_shapes(tmp_path_factory.mktemp('data') / 'small', train=8, val=2, size=96)
    names = CocoDataset.METAINFO['classes']
    for path in (root / 'coco' / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        content['categories'] = [{'id': i + 1, 'name': name} for i, name in enumerate(names)]
        path.write_text(json.dumps(content))
    return root
