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
from xcit_mm_cli import check, test, train

from ..tiny import ROOT, write_config

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


def label_folder(root, **settings):
    prefix = dict(img_path='images', seg_map_path='labels')
    settings = dict(metainfo=dict(classes=CLASSES), data_prefix=prefix) | settings
    return LabelFolder(data_root=str(root), **settings)


def pairs(dataset):
    names = [dataset.get_data_info(i) for i in range(len(dataset))]
    short = [(info['img_path'], info['seg_map_path']) for info in names]
    return [tuple(path.removeprefix(f'{dataset.data_root}/') for path in pair) for pair in short]


def test_images_and_labels_are_paired_by_their_stems(folder):
    root = folder(['a.jpg', 'b.PNG', 'deep/c.bmp'])
    (root / 'images' / 'readme.txt').touch()
    assert pairs(label_folder(root)) == [
        ('images/a.jpg', 'labels/a.png'),
        ('images/b.PNG', 'labels/b.png'),
        ('images/deep/c.bmp', 'labels/deep/c.png'),
    ]
    assert pairs(label_folder(root, img_suffix='.jpg')) == [('images/a.jpg', 'labels/a.png')]
    assert len(label_folder(root, img_suffix=('.jpg', '.bmp'))) == 2


def test_labels_may_have_a_suffix_of_their_own_even_in_the_same_folder(folder):
    root = folder(['1.png', '2.png'], 'images/{}_L.png')
    same = dict(img_path='images', seg_map_path='images')
    expected = [('images/1.png', 'images/1_L.png'), ('images/2.png', 'images/2_L.png')]
    for img_suffix in (None, '.png'):
        dataset = label_folder(
            root, data_prefix=same, img_suffix=img_suffix, seg_map_suffix='_L.png'
        )
        assert pairs(dataset) == expected
    with pytest.raises(DataError, match='tell them apart'):
        label_folder(root, data_prefix=same)


def test_a_list_names_the_images_of_a_split(folder):
    root = folder(['a.jpg', 'b.jpg', 'c.jpg'])
    (root / 'train.txt').write_text('c\na.jpg\n\n')
    assert [image for image, _ in pairs(label_folder(root, ann_file='train.txt'))] == [
        'images/c.jpg',
        'images/a.jpg',
    ]


@pytest.mark.parametrize(
    'stored, settings, expected',
    [
        ((0, 1, 2), {}, (0, 1, 2)),
        ((0, 1, 2, 255), {}, (0, 1, 2, 255)),
        ((0, 1, 2, 3, 7), dict(void=(3, 7)), (0, 1, 2, 255, 255)),
        ((0, 1, 2, 255), dict(void=255), (0, 1, 2, 255)),
        ((0, 1, 2, 3), dict(reduce_zero_label=True), (255, 0, 1, 2)),
        ((0, 1, 2, 3, 4, 255), dict(reduce_zero_label=True, void=4), (255, 0, 1, 2, 255, 255)),
        ((0, 1, 2, 3, 254), dict(reduce_zero_label=True, void=[0, 254]), (255, 0, 1, 2, 255)),
    ],
)  # fmt: skip
def test_void_means_values_as_they_are_stored(stored, settings, expected, folder):
    init_default_scope('mmseg')
    root = folder(['a.jpg'], values=stored)
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    prefix = dict(img_path='images', seg_map_path='labels')
    settings = dict(settings, data_root=str(root), data_prefix=prefix, pipeline=pipeline)
    config = dict(type='LabelFolder', metainfo=dict(classes=CLASSES), **settings)
    labels = build_guarded(config)[0]['gt_seg_map']
    np.testing.assert_array_equal(labels, np.resize(np.array(expected), SIZE))


WRONG = {
    'no classes': (dict(metainfo=None), 'needs the names of the classes'),
    'void is a class': (dict(void=(255, 2)), "void=2 is also the number of the class 'sky'"),
    'void 0': (dict(void=0), "class 'road'.* set reduce_zero_label=True instead"),
    'void of classes from 1': (dict(void=3, reduce_zero_label=True), 'they are 1 to 3'),
    'void too large': (dict(void=256), 'from 0 to 255'),
    'other suffix': (dict(seg_map_suffix='_L.png'), "in _L.png; .* Set seg_map_suffix='.png'"),
    'other names': (
        dict(data_prefix=dict(img_path='images', seg_map_path='.'), seg_map_suffix='.tif'),
        'has 2 files with .jpg, 2 files with .png, and none has the name of an image',
    ),
}


@pytest.mark.parametrize('case', WRONG)
def test_contradictions_are_explained(case, folder):
    settings, message = WRONG[case]
    with pytest.raises(DataError, match=message):
        label_folder(folder(['a.jpg', 'b.jpg']), **settings)


def test_two_images_of_one_name_are_refused(folder):
    root = folder(['a.jpg', 'a.png'])
    with pytest.raises(DataError, match=r'images has both a.jpg and a.png'):
        label_folder(root)
    assert len(label_folder(root, img_suffix='.png')) == 1


def test_the_palette_is_made_up_or_given(folder):
    root = folder(['a.jpg'])
    assert len(label_folder(root).metainfo['palette']) == 3
    given = [[1, 2, 3]] * 3
    metainfo = dict(classes=CLASSES, palette=given)
    assert label_folder(root, metainfo=metainfo).metainfo['palette'] == given


# Commands

SETTINGS = """
metainfo = dict(classes={classes}, palette=None)
for loader in (train_dataloader, val_dataloader, test_dataloader):
    loader['dataset'] = dict(
        type='LabelFolder', data_root='{root}', metainfo=dict(classes={classes}),
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        pipeline=loader['dataset']['pipeline'], {settings})
model['decode_head']['num_classes'] = {number}
"""


@pytest.fixture
def config(tmp_path):
    """A function that writes the config of a tiny segmentor on a label folder."""

    def write(root, settings='', classes=CLASSES):
        path = write_config(tmp_path, 'seg', root)
        fields = dict(classes=classes, root=root, settings=settings, number=len(classes))
        path.write_text(path.read_text() + SETTINGS.format(**fields))
        return path

    return write


def problems(path, tmp_path, *options):
    report = tmp_path / 'report.json'
    status = check.main([str(path), '--json', str(report), '--force', *options])
    found = json.loads(report.read_text())['problems']
    return status, {(problem['problem'], problem['file'], problem['detail']) for problem in found}


def test_a_label_folder_is_checked_trained_and_tested(folder, config, tmp_path, capfd):
    """Also if the config's own custom_imports do not name the module of the class."""
    path = config(folder(['a.jpg', 'b.png'], values=(0, 1, 2, 3, 4)),
                  'reduce_zero_label=True, void=4')  # fmt: skip
    path.write_text(path.read_text() + "custom_imports = dict(imports=['xcit_mm'])\n")
    assert problems(path, tmp_path) == (0, set())
    assert train.main([str(path), '--work-dir', str(tmp_path / 'work')]) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    assert test.main([str(path), str(checkpoint), '--work-dir', str(tmp_path / 'work')]) == 0
    assert 'road' in capfd.readouterr().out


def test_the_check_lists_what_does_not_fit(folder, config, tmp_path, capfd):
    root = folder(['a.jpg', 'b.jpg'], values=(0, 1, 3, 9))
    (root / 'labels' / 'b.png').rename(root / 'labels' / 'c.png')
    path = config(root)
    status, found = problems(path, tmp_path)
    label = str(root / 'labels')
    assert status == 1
    assert {(kind, file) for kind, file, _ in found} == {
        ('label: out of range', f'{label}/a.png'),
        ('label: missing', f'{label}/b.png'),
        ('label: without image', f'{label}/c.png'),
        ('label: class never used', label),
    }
    (detail,) = [detail for kind, _, detail in found if 'range' in kind]
    assert detail.startswith('the file has 3, 9; the config names 3 classes, 0 to 2')
    assert train.main([str(path), '--work-dir', str(tmp_path / 'work')]) == 2
    assert '1 of 2 images have no label' in capfd.readouterr().err


def test_the_check_says_how_labels_end(folder, config, tmp_path):
    root = folder(['a.jpg', 'deep/b.jpg'], 'labels/{}_mask.png')
    status, found = problems(config(root, "seg_map_suffix='_L.png'"), tmp_path)
    ((kind, file, detail),) = found
    assert status == 1 and kind == 'dataset: no labels' and file == str(root / 'labels')
    assert detail.endswith("the labels there end in _mask.png. Set seg_map_suffix='_mask.png'")


def test_classes_from_1_without_the_switch_are_explained(folder, config, tmp_path):
    _, found = problems(config(folder(['a.jpg'], values=range(60))), tmp_path)
    assert any('has 3, 4, 5, 6, 7, 8, 9, 10 and 49 more; ' in detail for *_, detail in found)
    status, found = problems(config(folder(['a.jpg'], values=(1, 2, 3))), tmp_path)
    assert status == 1
    assert any('set reduce_zero_label=True' in detail for *_, detail in found)
    # The other way around, the last class is missing and the first is ignored.
    path = config(folder(['a.jpg'], values=(0, 1, 2)), 'reduce_zero_label=True')
    status, found = problems(path, tmp_path)
    assert status == 0 and {(k, d) for k, _, d in found} == {
        ('label: class never used', 'no pixel has sky')
    }


def test_one_switch_says_where_classes_start(folder, config, tmp_path, capfd):
    """The pipelines of our configs follow the dataset; one that contradicts it is named."""
    root = folder(['a.jpg'])
    for name in ('sem_fpn_xcit_n12_16_80k', 'sem_fpn_xcit_n12_8_shapes'):
        cfg = Config.fromfile(ROOT / 'configs' / 'segmentation' / f'{name}.py')
        assert 'reduce_zero_label' not in str(cfg.train_pipeline + cfg.test_pipeline)
    path = config(root)
    line = "train_dataloader['dataset']['pipeline'][1]['reduce_zero_label'] = True\n"
    path.write_text(path.read_text() + line)
    status, found = problems(path, tmp_path)
    assert status == 1
    (detail,) = [detail for kind, _, detail in found if kind == 'dataset: reduce_zero_label']
    text = "reduce_zero_label=False, but its pipeline has dict(type='LoadAnnotations', "
    assert text in detail and 'Remove reduce_zero_label from that line' in detail
    assert train.main([str(path), '--work-dir', str(tmp_path / 'work')]) == 2
    error = capfd.readouterr().err
    assert text in error and 'Traceback' not in error
