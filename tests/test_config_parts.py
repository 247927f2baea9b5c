"""Parts of a config are found at any depth, and its text is read without being run."""

from pathlib import Path

import pytest
from mmengine.config import Config

from xcit_mm.configs import (
    bit_depth,
    innermost_datasets,
    nested_dicts,
    read_literals,
    resizing,
)
from xcit_mm.errors import UserError

from .tiny import recipe


def test_datasets_are_found_in_their_wrappers():
    plain, other = dict(type='A', data_root='a'), dict(type='B', ann_file='b')
    joined = dict(type='Concat', datasets=[dict(type='Repeat', times=2, dataset=plain), other])
    for loader, expected in (
        (dict(batch_size=1, dataset=plain), ['A']),
        (dict(batch_size=1, dataset=joined), ['A', 'B']),
        (dict(batch_size=1), []),
        (None, []),
    ):
        assert [dataset['type'] for dataset in innermost_datasets(loader)] == expected
    # Changes of a dataset change the config.
    cfg = Config(dict(loader=dict(dataset=joined)))
    for dataset in innermost_datasets(cfg.loader):
        dataset.pipeline = ['new']
    assert [one.pipeline for one in innermost_datasets(cfg.loader)] == [['new'], ['new']]


def test_all_dicts_are_found_outer_ones_first():
    inner = dict(x=1)
    node = dict(a=[dict(b=(inner, 2))], c='text')
    assert list(nested_dicts(node)) == [node, node['a'][0], inner]
    assert list(nested_dicts('text')) == []


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_a_saved_config_is_read_without_being_run(head):
    cfg = recipe(head, 16)
    settings = read_literals(cfg.pretty_text)
    assert resizing(settings) == resizing(cfg) == {'scale': [160, 96], 'keep_ratio': True}
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
    def resized(**step):
        return resizing({'test_pipeline': [dict(type='Resize', **step)]})

    assert resized(scale_factor=0.5) == {'scale_factor': 0.5}
    assert resizing({}) is None
    assert all(resized(scale=bad) is None for bad in (None, 'a', -1, [1, 'b'], [1, 2, 3], {}))


@pytest.mark.parametrize(
    'steps, message',
    [
        ([dict(type='LoadImageFromFile'), dict(bit_depth=12)], 'Add color_type=3'),
        ([dict(type='mmdet.LoadImageFromFile'), dict(bit_depth=12)], 'Add color_type=3'),
        ([dict(bit_depth=20)], 'from 8 to 16, not 20'),
        ([dict(bit_depth=12)], 'the same bit_depth; there is 12 in train_dataloader, none in val'),
    ],
)
def test_bit_depths_that_contradict_each_other_are_explained(steps, message):
    pipelines = {'train_dataloader': steps, 'val_dataloader': []}
    cfg = {name: dict(dataset=dict(type='Own', pipeline=p)) for name, p in pipelines.items()}
    with pytest.raises(UserError, match=message):
        bit_depth(cfg)
