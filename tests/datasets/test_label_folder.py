"""Labels with any names, folders and class numbers are used as they are."""

import json

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from xcit_mm.datasets.guard import build_guarded
from xcit_mm.datasets.label_folder import LabelFolder
from xcit_mm.datasets.problems import DataError

from ..tiny import ROOT, call, write_config

SIZE = (48, 64)
CLASSES = ('road', 'car', 'sky')


@pytest.fixture
def folder(tmp_path):
    """A function that writes images and labels: (names of images -> values of their labels)."""

    def write(files, labels='labels/{}.png', values=(0, 1, 2)):
        for i, name in enumerate(files):
            image = np.random.default_rng(i).integers(0, 256, (*SIZE, 3), np.uint8)
            label = np.resize(np.array(values, np.uint8), SIZE)
            for path, array in ((f'images/{name}', image), (labels.format(name[:-4]), label)):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                suffix = path[path.rindex('.') :]
                (tmp_path / path).write_bytes(cv2.imencode(suffix, array)[1].tobytes())
        return tmp_path

    return write


def settings_of(root, **settings):
    prefix = dict(img_path='images', seg_map_path='labels')
    common = dict(data_root=str(root), data_prefix=prefix, metainfo=dict(classes=CLASSES))
    return common | settings


def pairs(root, **settings):
    """The paths of images and labels below the root."""
    dataset = LabelFolder(**settings_of(root, **settings))
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    return [
        tuple(info[key].removeprefix(f'{root}/') for key in ('img_path', 'seg_map_path'))
        for info in infos
    ]


def test_images_and_labels_are_paired_by_their_stems(folder):
    root = folder(['a.jpg', 'b.PNG', 'deep/c.bmp'])
    (root / 'images' / 'readme.txt').touch()
    (root / 'train.txt').write_text('deep/c\na.jpg\n\n')
    a, b, c = (
        ('images/a.jpg', 'labels/a.png'),
        ('images/b.PNG', 'labels/b.png'),
        ('images/deep/c.bmp', 'labels/deep/c.png'),
    )
    assert pairs(root) == [a, b, c]
    assert pairs(root, img_suffix='.jpg') == [a]
    assert pairs(root, img_suffix=('.jpg', '.bmp')) == [a, c]
    assert pairs(root, ann_file='train.txt') == [c, a]


def test_labels_may_have_a_suffix_of_their_own_even_in_the_same_folder(folder):
    root = folder(['1.png', '2.png'], 'images/{}_L.png')
    same = dict(img_path='images', seg_map_path='images')
    expected = [('images/1.png', 'images/1_L.png'), ('images/2.png', 'images/2_L.png')]
    for suffix in (None, '.png'):
        settings = dict(data_prefix=same, img_suffix=suffix, seg_map_suffix='_L.png')
        assert pairs(root, **settings) == expected


@pytest.mark.parametrize(
    'stored, settings, expected',
    [
        ((0, 1, 2), {}, (0, 1, 2)),
        ((0, 1, 2, 255), {}, (0, 1, 2, 255)),
        ((0, 1, 2, 3, 7), dict(void=(3, 7)), (0, 1, 2, 255, 255)),
        ((0, 1, 2, 255), dict(void=255), (0, 1, 2, 255)),
        ((0, 1, 2, 3), dict(reduce_zero_label=True), (255, 0, 1, 2)),
        ((0, 1, 2, 3, 4, 255), dict(reduce_zero_label=True, void=4), (255, 0, 1, 2, 255, 255)),
        ((0, 90, 255), dict(values=(90, 255, 0)), (2, 0, 1)),
        ((0, 2, 3, 9, 255), dict(values=(2, 3, 255), void=(0, 9)), (255, 0, 1, 255, 2)),
        ((0, 1, 2, 3, 254), dict(reduce_zero_label=True, void=[0, 254]), (255, 0, 1, 2, 255)),
    ],
)
def test_void_means_values_as_they_are_stored(stored, settings, expected, folder):
    init_default_scope('mmseg')
    root = folder(['a.jpg'], values=stored)
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    config = settings_of(root, type='LabelFolder', pipeline=pipeline, **settings)
    labels = build_guarded(config)[0]['gt_seg_map']
    np.testing.assert_array_equal(labels, np.resize(np.array(expected), SIZE))


IN_ROOT = dict(img_path='images', seg_map_path='.')
IN_IMAGES = dict(img_path='images', seg_map_path='images')
WRONG = [
    (dict(metainfo=None), 'needs the names of the classes'),
    (dict(void=(255, 2)), "void=2 is also the number of the class 'sky'"),
    (dict(void=0), "class 'road'.* set reduce_zero_label=True instead"),
    (dict(void=3, reduce_zero_label=True), 'they are 1 to 3'),
    (dict(void=256), 'from 0 to 255'),
    (dict(values=(0, 1, 254)), 'from 0 to 255, without 254'),
    (dict(values=(0, 255)), 'for each of the 3 classes: road, '),
    (dict(values=(0, 255, 255)), 'a value of its own'),
    (dict(values=(0, 100, 255), void=255), '255 is in both values and void'),
    (dict(values=(1, 2, 3), reduce_zero_label=True), 'exclude each other'),
    (dict(data_prefix=IN_IMAGES), 'tell them apart'),
    (dict(img_suffix=('.jpg', '.bmp')), 'images has both a.bmp and a.jpg'),
    (dict(img_suffix='.jpg', seg_map_suffix='_L.png'), "_L.png; .* Set seg_map_suffix='.png'"),
    (
        dict(img_suffix='.jpg', seg_map_suffix='.tif', data_prefix=IN_ROOT),
        '1 files with .png, and none has the name of an image',
    ),
]


@pytest.mark.parametrize('settings, message', WRONG)
def test_contradictions_are_explained(settings, message, folder):
    with pytest.raises(DataError, match=message):
        LabelFolder(**settings_of(folder(['a.jpg', 'a.bmp']), **settings))


SETTINGS = """
for loader in (train_dataloader, val_dataloader, test_dataloader):
    loader['dataset'] = dict(
        type='LabelFolder', data_root='{root}', metainfo=dict(classes={classes}),
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        pipeline=loader['dataset']['pipeline'], {settings})
model['decode_head']['num_classes'] = 3
"""


@pytest.fixture
def config(tmp_path):
    """A function that writes the config of a tiny segmentor on a label folder."""

    def write(root, settings='', line=''):
        path = write_config(tmp_path, 'seg', root)
        fields = dict(classes=CLASSES, root=root, settings=settings)
        path.write_text(path.read_text() + SETTINGS.format(**fields) + line)
        return path

    return write


def problems(path, tmp_path):
    """The exit status of the check, and the problems that it finds: (kind, file) -> detail."""
    report = tmp_path / 'report.json'
    status = call('check', path, '--json', report, '--force')
    found = json.loads(report.read_text())['problems']
    return status, {
        (p['problem'], p['file'].removeprefix(f'{tmp_path}/')): p['detail'] for p in found
    }


def test_a_label_folder_is_checked_trained_and_tested(folder, config, tmp_path, capfd):
    """Also if the config's own custom_imports do not name the module of the class."""
    root = folder(['a.jpg', 'b.png'], values=(0, 1, 2, 3, 4))
    imports = "custom_imports = dict(imports=['xcit_mm'])\n"
    path = config(root, 'reduce_zero_label=True, void=4', imports)
    assert problems(path, tmp_path) == (0, {})
    assert call('train', path, '--work-dir', tmp_path / 'work') == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    assert call('test', path, checkpoint, '--work-dir', tmp_path / 'work') == 0
    assert 'road' in capfd.readouterr().out


RANGE, UNUSED = ('label: out of range', 'labels/a.png'), ('label: class never used', 'labels')
# values of the labels, names of labels, settings -> exit status, and parts of the details
FOUND = [
    ((0, 1, 2, 3, 9), '{}', '', 1, {RANGE: 'has 3, 9; the config names 3 classes, 0 to 2'}),
    (range(60), '{}', '', 1, {RANGE: 'has 3, 4, 5, 6, 7, 8, 9, 10 and 49 more; '}),
    ((1, 2, 3), '{}', '', 1, {RANGE: 'set reduce_zero_label=True', UNUSED: 'no pixel has road'}),
    # The other way around, the last class is missing and the first is ignored.
    ((0, 1, 2), '{}', 'reduce_zero_label=True', 0, {UNUSED: 'no pixel has sky'}),
    (
        (0, 1, 2), '{}_mask', "seg_map_suffix='_L.png'", 1,
        {('dataset: no labels', 'labels'): "in _mask.png. Set seg_map_suffix='_mask.png'"},
    ),
]  # fmt: skip


@pytest.mark.parametrize('values, names, settings, status, expected', FOUND)
def test_the_check_says_what_does_not_fit(
    values, names, settings, status, expected, folder, config, tmp_path
):
    root = folder(['a.jpg'], f'labels/{names}.png', values)
    found_status, found = problems(config(root, settings), tmp_path)
    assert (found_status, found.keys()) == (status, expected.keys())
    assert all(text in found[key] for key, text in expected.items())


def test_a_missing_label_stops_a_run(folder, config, tmp_path, capfd):
    root = folder(['a.jpg', 'b.jpg'])
    (root / 'labels' / 'b.png').rename(root / 'labels' / 'c.png')
    path = config(root)
    missing = {('label: missing', 'labels/b.png'), ('label: without image', 'labels/c.png')}
    assert problems(path, tmp_path)[1].keys() == missing
    assert call('train', path, '--work-dir', tmp_path / 'work') == 2
    assert '1 of 2 images have no label' in capfd.readouterr().err


def test_one_switch_says_where_classes_start(folder, config, tmp_path, capfd):
    """The pipelines of our configs follow the dataset; one that contradicts it is named."""
    for name in ('sem_fpn_xcit_n12_16_80k', 'sem_fpn_xcit_n12_8_shapes'):
        cfg = Config.fromfile(ROOT / 'configs' / 'segmentation' / f'{name}.py')
        assert 'reduce_zero_label' not in str(cfg.train_pipeline + cfg.test_pipeline)
    line = "train_dataloader['dataset']['pipeline'][1]['reduce_zero_label'] = True\n"
    path = config(folder(['a.jpg']), line=line)
    status, found = problems(path, tmp_path)
    text = "reduce_zero_label=False, but its pipeline has dict(type='LoadAnnotations', "
    assert status == 1 and text in found['dataset: reduce_zero_label', 'labels']
    assert call('train', path, '--work-dir', tmp_path / 'work') == 2
    error = capfd.readouterr().err
    assert text in error and 'Remove reduce_zero_label from that line' in error
    assert 'Traceback' not in error
