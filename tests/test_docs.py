"""The configs that the documentation shows are run, not only shown."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from .tiny import short_run, shrink

ROOT = Path(__file__).parents[1]


def blocks(page):
    """The Python code that a page shows."""
    return re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / page).read_text(), re.DOTALL)


@pytest.mark.parametrize('name', ['my_detector', 'my_segmentor'])
def test_example_of_own_data_trains(name, small_shapes, tmp_path):
    from xcit_mm.cli import train

    (code,) = [block for block in blocks('custom_data.md') if block.startswith(f'# {name}.py')]
    config = tmp_path / f'{name}.py'
    config.write_text(code.replace("_base_ = '", f"_base_ = '{ROOT}/"))
    cfg = Config.fromfile(config)
    shrink(cfg.model)
    cfg.merge_from_dict({**short_run(cfg.default_scope, small_shapes), 'load_from': None})
    config.write_text(cfg.pretty_text)
    assert train.main([str(config), '--work-dir', str(tmp_path / 'work')]) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    head = 'roi_head.bbox_head.fc_cls' if name == 'my_detector' else 'decode_head.conv_seg'
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
