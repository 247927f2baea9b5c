"""Data is found in users' folders, with its splits, classes and the meaning of its labels."""

import cv2
import numpy as np
import pytest
from mmengine.config import Config

from xcit_mm.datasets.find import find_coco, find_labels
from xcit_mm.datasets.find.labels import looks_like_instances
from xcit_mm.datasets.images import warn_of_unused_bits
from xcit_mm.errors import UserError
from xcit_mm.pretraining import UnlabeledFolder
from xcit_mm_runtime.coco import read_coco

from .own_data import write_coco, write_values


def test_images_of_the_same_name_belong_to_their_split(small_shapes):
    data = find_coco(small_shapes / 'coco', small_shapes / 'none')
    assert data.splits['train'][:2] == ('annotations/instances_train2017.json', 'train2017/')
    assert data.splits['val'][:2] == ('annotations/instances_val2017.json', 'val2017/')
    assert data.example == small_shapes / 'coco/val2017/000000000001.jpg'


def test_a_file_is_split_without_losing_objects(small_shapes, tmp_path):
    write_coco(small_shapes, tmp_path / 'data')
    data = find_coco(tmp_path / 'data', tmp_path / 'new', val_fraction=0.25)
    assert data.unused == ['never used'] and data.masks
    parts = [read_coco(tmp_path / f'new/{split}.json') for split in data.splits]
    assert [len(part['images']) for part in parts] == [6, 2]
    objects = [one['id'] for part in parts for one in part['annotations']]
    whole = read_coco(tmp_path / 'data/result.json')
    assert sorted(objects) == [one['id'] for one in whole['annotations']]


@pytest.mark.parametrize('files, message', [
    (['train_a', 'train_b'], 'several annotation files for train: .*train_a.json, .*train_b.json'),
    (['val'], 'has COCO files for val, none for training'),
    (['train', 'test'], 'The images of .*.json are nowhere in'),
])  # fmt: skip
def test_ambiguous_files_are_explained(files, message, small_shapes, tmp_path):
    text = (small_shapes / 'coco/annotations/instances_train2017.json').read_text()
    for name in files:
        (tmp_path / f'{name}.json').write_text(text)
    with pytest.raises(UserError, match=message):
        find_coco(tmp_path, tmp_path / 'none')


def test_a_single_image_is_used_for_training_and_validation(tmp_path):
    write_values(tmp_path / 'data', [0, 1])
    for name in ('b', 'c'):
        (tmp_path / f'data/images/{name}.png').unlink()
        (tmp_path / f'data/labels/{name}.png').unlink()
    data = find_labels(tmp_path / 'data', tmp_path / 'lists')
    assert data.splits['train'] == data.splits['val'] and data.splits['val'].total == 1


@pytest.mark.parametrize('is_numbered', [True, False])
def test_labels_that_number_objects_are_not_taken_for_classes(is_numbered, tmp_path):
    """A number for each cell: 1, 2, 3 and so on in each image, or on from image to image."""
    data = tmp_path / 'data'
    write_values(data, [0])
    number = 0
    for cells, path in zip((9, 25, 14), sorted((data / 'labels').iterdir()), strict=True):
        labels = np.zeros((90, 90), np.uint8)
        number *= not is_numbered
        for place in np.random.default_rng(cells).permutation(25)[:cells].tolist():
            number += 1
            cv2.circle(labels, (10 + 17 * (place % 5), 10 + 17 * (place // 5)), 7, number, -1)
        cv2.imwrite(str(path), labels)
        cv2.imwrite(str(data / 'images' / path.name), np.zeros((90, 90, 3), np.uint8))
    with pytest.raises(UserError) as raised:
        find_labels(data, data / 'splits')
    error = str(raised.value)
    assert 'files have 9 to 25 labels next to 0, and 100% of these are one connected' in error
    assert 'init detection' in error and '--classes' in error
    assert sorted(path.name for path in data.iterdir()) == ['images', 'labels']
    names = [f'stage {i}' for i in range(49)]
    assert find_labels(data, tmp_path / 'lists', names).classes == names


@pytest.mark.parametrize(
    'files',
    [
        [{1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}] * 4 + [{1: 1, 2: 1, 3: 1, 4: 1}],  # organs
        [{1: 1, 5: 1}, {2: 1, 3: 1, 6: 1}, {1: 1, 2: 1}, {4: 1}],  # few things, of several classes
        [{label: 1 + label % 3 for label in range(1, n)} for n in range(10, 20)],  # scattered ones
        [{1: 1}, {1: 1, 2: 1}, {1: 1, 2: 1, 3: 1}],  # nested ones
    ],
)
def test_classes_are_not_taken_for_objects(files):
    assert not looks_like_instances(files)


def test_bits_that_nobody_stated_are_noticed_before_training(tmp_path, capfd):
    write_values(tmp_path, [0, 1, 2])
    cfg = Config(dict(train_dataloader=dict(dataset=dict(type='Own', pipeline=[]))))
    dataset = UnlabeledFolder(data_root=str(tmp_path), data_prefix=dict(img_path='images'))
    warn_of_unused_bits(dataset, cfg)
    for path in (tmp_path / 'images').iterdir():
        cv2.imwrite(str(path), np.full((32, 32), 4000, np.uint16))
    warn_of_unused_bits(dataset, cfg)
    cfg.train_dataloader.dataset.pipeline = [dict(type='ScaleTo8Bit', bit_depth=12)]
    warn_of_unused_bits(dataset, cfg)
    printed = ''.join(capfd.readouterr())
    assert printed.count('looks like 12 bits') == 1 and 'bit_depth=12' in printed
