"""The configs that the documentation shows are run, not only shown."""

import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.datasets.shapes import make_shapes

from .test_tools import options_for

ROOT = Path(__file__).parents[1]


def blocks(page):
    """The Python code that a page shows."""
    return re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / page).read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['my_detector', 'my_segmentor'])
def test_example_of_own_data_trains(name, tmp_path, monkeypatch):
    from xcit_mm.cli import train

    data = make_shapes(tmp_path / 'mine', train=8, val=2, size=96)
    (code,) = [block for block in blocks('custom_data.md') if block.startswith(f'# {name}.py')]
    config = tmp_path / f'{name}.py'
    config.write_text(code.replace("_base_ = '", f"_base_ = '{ROOT}/"))
    kind = 'detection' if name == 'my_detector' else 'segmentation'
    options = [*options_for(kind, data), 'load_from=None']
    arguments = ['train.py', str(config), '--work-dir', str(tmp_path), '--cfg-options', *options]
    monkeypatch.setattr(sys, 'argv', arguments)
    train.main()
    (checkpoint,) = tmp_path.glob('*_1.pth')
    head = {'detection': 'roi_head.bbox_head.fc_cls', 'segmentation': 'decode_head.conv_seg'}[kind]
    saved = torch.load(checkpoint, weights_only=True)['state_dict']
    assert len(saved[f'{head}.weight']) == 6  # five classes, and one for everything else


def test_example_of_another_detector_builds(tmp_path):
    config = tmp_path / 'retinanet.py'
    config.write_text(blocks('backbone.md')[0])
    cfg = Config.fromfile(config)
    init_default_scope('mmdet')
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        scores, _ = model(torch.randn(1, 3, 64, 64), mode='tensor')
    assert [score.shape[-1] for score in scores] == [8, 4, 2, 1, 1]
