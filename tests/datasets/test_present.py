"""Missing data is explained in the user's layout, and nothing is drawn by accident."""

import pytest
from mmengine.config import Config

from xcit_mm.datasets.present import check_datasets
from xcit_mm.errors import UserError

from ..tiny import call

SHAPES = dict(root='data/shapes', train=2, val=1, size=48, seed=0)
TRAIN = dict(ann_file='annotations/instances_train2017.json', data_prefix=dict(img='train2017/'))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine(empty_folder):
    """A dataset, without content."""
    (empty_folder / 'mine' / 'train2017').mkdir(parents=True)
    (empty_folder / 'mine' / 'annotations').mkdir()
    (empty_folder / 'mine' / TRAIN['ann_file']).touch()
    return empty_folder / 'mine'


def config(train_root, val_root=None, **settings):
    loaders = {
        f'{split}_dataloader': dict(dataset=dict(type='CocoDataset', data_root=root, **TRAIN))
        for split, root in (('train', train_root), ('val', val_root or train_root))
    }
    return Config(dict(default_scope='mmdet', **loaders, **settings))


def message(cfg):
    with pytest.raises(UserError) as raised:
        check_datasets(cfg, ('train_dataloader', 'val_dataloader'))
    return str(raised.value)


def test_the_built_in_data_is_drawn_if_the_run_uses_it(empty_folder):
    check_datasets(config('data/shapes/coco', shapes=SHAPES), ('train_dataloader',))
    assert (empty_folder / 'data/shapes/coco/train2017/000000000002.jpg').is_file()
    cfg = config('data/shapes/coco', shapes={**SHAPES, 'seed': 1})
    assert 'was made with' in message(cfg)


@pytest.mark.parametrize(
    'roots, shapes',
    [
        (('mine', 'data/shapes/coco'), SHAPES),
        (('data/shapes_of_mine',), SHAPES),
        (('data/shapes/coco',), None),
    ],
)
def test_nothing_is_drawn_next_to_own_data(roots, shapes, mine):
    check_datasets(config('mine', shapes=SHAPES), ('train_dataloader', 'val_dataloader'))
    assert str(mine.parent / roots[-1]) in message(config(*roots, shapes=shapes))
    assert [path.name for path in mine.parent.iterdir()] == ['mine']


def test_an_evaluator_without_its_annotations_is_told_which(mine):
    evaluator = dict(type='CocoMetric', ann_file='data/coco/annotations/instances_val2017.json')
    text = message(config('mine', val_evaluator=evaluator))
    assert 'instances_val2017.json does not exist (ann_file of val_evaluator' in text
    assert text.endswith(f'of the dataset in val_dataloader: mine/{TRAIN["ann_file"]}')


def test_one_string_is_not_a_list_of_classes(mine):
    cfg = config('mine')
    cfg.train_dataloader.dataset.metainfo = dict(classes='cell')
    assert "metainfo = dict(classes=('cell',))" in message(cfg)
    (mine.parent / 'cell').touch()  # mmengine reads the names from a file
    check_datasets(cfg, ('train_dataloader', 'val_dataloader'))


def test_commands_explain_missing_data(empty_folder, capsys):
    name = 'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py'
    (empty_folder / 'mine.py').write_text(f"_base_ = '{name}'\nshapes = None\n")
    to_draw = 'xcit-mm shapes data/shapes --train 2400 --val 120 --size 96 --seed 0'
    for command, path, text in (
        ('check', name, to_draw),
        ('check', 'mine.py', 'does not exist'),
        ('train', 'mine.py', 'does not exist'),
    ):
        assert call(command, path) == 2
        error = capsys.readouterr().err
        assert text in error and 'Traceback' not in error
    assert [path.name for path in empty_folder.iterdir()] == ['mine.py']


def test_what_is_there_instead_is_shown(empty_folder):
    for name in ('Annotation', 'train_2017', *'abcdefg'):
        (empty_folder / 'mine' / name).mkdir(parents=True)
    (empty_folder / 'mine' / 'Annotation' / 'instances_train.json').touch()
    assert f'{empty_folder} has mine/. Did you mean mine/?' in message(config('mein'))
    text = message(config('mine'))
    assert 'ann_file of train_dataloader' in text and 'Did you mean Annotation/?' in text
    assert 'a/, b/, c/' in text and ' and 1 more.' in text and 'cocodataset' not in text
    (empty_folder / 'mine' / 'Annotation').rename(empty_folder / 'mine' / 'annotations')
    assert 'has instances_train.json. Did you mean instances_train.json?' in message(config('mine'))


def test_the_public_layout_is_shown_for_the_public_data_only():
    cfg = config('data/coco/')
    assert 'cocodataset.org' in message(cfg)
    cfg.train_dataloader.dataset.ann_file = 'annotations/mine.json'
    assert 'cocodataset.org' not in message(cfg)
    cfg = config('data/coco/')
    cfg.train_dataloader.dataset.metainfo = dict(classes=('cat',))
    assert 'cocodataset.org' not in message(cfg) and 'custom_data.md' in message(cfg)


@pytest.mark.parametrize(
    'dataset',
    [
        dict(data_root='s3://bucket/coco', ann_file='a.json', data_prefix=dict(img='train/')),
        dict(data_root='.', ann_file='s3://b/a.json', data_prefix=dict(img='petrel://b')),
        dict(data_root='data/none', ann_file='a.json', backend_args=dict(backend='petrel')),
    ],
)
def test_data_elsewhere_is_not_looked_for(dataset):
    cfg = config('.')
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset = dict(type='CocoDataset', **dataset)
    check_datasets(cfg, ('train_dataloader', 'val_dataloader'))


def test_an_absolute_path_does_not_depend_on_the_root(empty_folder):
    cfg = config('s3://bucket')
    cfg.train_dataloader.dataset.ann_file = str(empty_folder / 'a.json')
    assert 'ann_file of train_dataloader' in message(cfg)
