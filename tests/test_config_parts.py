"""Parts of a config are found at any depth."""

from mmengine.config import Config

from xcit_mm.configs import innermost_datasets, nested_dicts


def test_datasets_are_found_in_their_wrappers():
    plain, other = dict(type='A', data_root='a'), dict(type='B', ann_file='b')
    repeated = dict(type='Repeat', times=2, dataset=plain)
    joined = dict(type='Concat', datasets=[repeated, other])
    for loader, expected in (
        (dict(batch_size=1, dataset=plain), ['A']),
        (dict(batch_size=1, dataset=joined), ['A', 'B']),
        (Config(dict(loader=dict(dataset=joined))).loader, ['A', 'B']),
        (dict(batch_size=1), []),
        (None, []),
    ):
        assert [dataset['type'] for dataset in innermost_datasets(loader)] == expected


def test_changes_of_a_dataset_change_the_config():
    cfg = Config(dict(loader=dict(dataset=dict(type='Repeat', dataset=dict(type='A')))))
    for dataset in innermost_datasets(cfg.loader):
        dataset.pipeline = ['new']
    assert cfg.loader.dataset.dataset.pipeline == ['new']


def test_all_dicts_are_found_outer_ones_first():
    inner = dict(x=1)
    node = dict(a=[dict(b=(inner, 2))], c='text')
    assert list(nested_dicts(node)) == [node, node['a'][0], inner]
    assert list(nested_dicts('text')) == []
