"""Parts of configs, and configs that are read without being run."""

from pathlib import Path

import pytest
from mmengine.config import Config

from xcit_mm.configs import read_literals, resizing

from .tiny import recipe


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_a_saved_config_is_read_without_being_run(head):
    cfg = recipe(head, 16)
    settings = read_literals(cfg.pretty_text)
    assert resizing(settings) == {'scale': [160, 96], 'keep_ratio': True}
    assert resizing(cfg) == {'scale': [160, 96], 'keep_ratio': True}
    assert settings.keys() == cfg.to_dict().keys()
    assert Config(settings).model.backbone.to_dict() == as_lists(cfg.model.backbone.to_dict())


def as_lists(node):
    if isinstance(node, dict):
        return {key: as_lists(value) for key, value in node.items()}
    return [as_lists(item) for item in node] if isinstance(node, (list, tuple)) else node


def test_nothing_in_the_text_of_a_config_is_run(tmp_path):
    target = tmp_path / 'written'
    text = f'open({str(target)!r}, "w")\na = open({str(target)!r}, "w")\nb = dict(c=1)\n'
    assert read_literals(text + 'import os\nd = 2 if open else 3\ne = b') == {'b': {'c': 1}}
    assert not Path(target).exists()
    for broken in ('a = (', 'a = \0', 'a = ' + '[' * 100_000, 'a = ' + '-' * 100_000 + '1'):
        assert read_literals(broken) == {}


def test_pipelines_without_resize_give_none():
    assert resizing({}) is None
    assert resizing({'test_pipeline': [dict(type='Resize', scale_factor=0.5)]}) == {
        'scale_factor': 0.5
    }
    for bad in (None, 'a', -1, [1, 'b'], [1, 2, 3], {}):
        assert resizing({'test_pipeline': [dict(type='Resize', scale=bad)]}) is None
