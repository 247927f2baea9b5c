"""Images of any number of channels: how they are found, read and cropped."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from xcit_mm.datasets.problems import DataError
from xcit_mm.pretraining import (
    CenterImageCrop,
    INaturalist,
    LabeledFolder,
    LoadChannels,
    MultiCrop,
    UnlabeledFolder,
    read_channels,
)

NUMBERS = dict(mean=[0.5], std=[0.25])


@pytest.fixture
def files(tmp_path):
    """Images of 1, 4 and 13 channels, and files that are none; returns the folder and arrays."""
    random = np.random.default_rng(0)
    gray = random.integers(0, 2**16, (20, 30), dtype=np.uint16)
    rgba = random.integers(0, 255, (20, 30, 4), dtype=np.uint8)
    many = random.random((20, 30, 13)).astype(np.float32)
    cv2.imwrite(str(tmp_path / 'gray.png'), gray)
    cv2.imwrite(str(tmp_path / '12.png'), gray >> 4)
    cv2.imwrite(str(tmp_path / 'rgba.png'), cv2.cvtColor(rgba, cv2.COLOR_RGBA2BGRA))
    cv2.imwritemulti(str(tmp_path / 'many.tiff'), list(many.transpose(2, 0, 1)))
    np.save(tmp_path / 'many.npy', many)
    np.save(tmp_path / '12.npy', np.dstack([gray >> 4] * 3))
    np.save(tmp_path / 'objects.npy', np.array([{}], dtype=object))
    (tmp_path / 'cut.png').write_bytes((tmp_path / 'rgba.png').read_bytes()[:30])
    return tmp_path, gray[..., None], rgba, many


def test_images_of_1_to_16_channels_are_read(files):
    folder, gray, rgba, many = files
    eight_bits = np.repeat(gray >> 8, 3, axis=2)
    for name, channels, bit_depth, expected in [
        ('gray.png', 1, 16, gray),
        ('gray.png', 3, 16, eight_bits),
        ('rgba.png', 4, 16, rgba),
        ('rgba.png', 3, 16, rgba[..., :3]),
        ('many.tiff', 13, 16, many),
        ('many.npy', 13, 16, many),
        # Values of 12 bits fill the range of the type, as others do.
        ('12.png', 1, 12, gray & 0xFFF0),
        ('12.png', 3, 12, eight_bits),
        ('12.npy', 3, 12, eight_bits),
    ]:
        found = read_channels(str(folder / name), channels, bit_depth)
        assert np.array_equal(found, expected), (name, channels)
    assert read_channels(str(folder / 'rgba.png'), 1).shape == (20, 30, 1)


def test_files_that_cannot_be_read_are_refused(files, capfd):
    folder, *_ = files
    for name, channels, message in [
        ('many.tiff', 16, '16 channels were expected'),
        ('many.npy', 16, '16 channels were expected'),
        ('objects.npy', 4, 'allow_pickle'),
        ('cut.png', 1, 'it cannot be read'),
        ('cut.png', 3, 'it cannot be read'),
        ('cut.png', 4, 'it cannot be read'),
    ]:
        path = str(folder / name)
        with pytest.raises(ValueError, match=message):
            read_channels(path, channels)
        assert LoadChannels(channels, skip_unreadable=True)(dict(img_path=path)) is None
    printed = ''.join(capfd.readouterr())
    for name in ('many.tiff', 'many.npy', 'objects.npy', 'cut.png'):
        assert f'{name} is skipped: ' in printed
    for channels in (0, 17):
        with pytest.raises(ValueError, match='channels must be in 1'):
            LoadChannels(channels)


@pytest.mark.parametrize('channels', [1, 3, 13])
def test_crops_have_their_sizes_and_are_reproducible(channels):
    image = np.random.default_rng(0).integers(0, 255, (70, 90, channels), dtype=np.uint8)
    crops = MultiCrop(64, (0.4, 1.0), 32, (0.05, 0.4), 3, **NUMBERS)
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(crops(dict(img=image))['img'])
    shapes = {name: tuple(each.shape) for name, each in results[0].items()}
    assert shapes == dict(global_crops=(2, channels, 64, 64), local_crops=(3, channels, 32, 32))
    for name, each in results[0].items():
        assert torch.equal(each, results[1][name])
        assert each.min() >= -2 and each.max() <= 2 + 1e-6  # 0...1, normalized
    only = MultiCrop(64, local_crops=0, **NUMBERS)(dict(img=image))['img']
    assert set(only) == {'global_crops'}
    middle = CenterImageCrop(32, crop_ratio=0.875, **NUMBERS)(dict(img=image))['img']
    assert middle.shape == (channels, 32, 32)


def test_images_and_settings_that_crops_cannot_take_are_refused(capfd):
    image = np.full((40, 90, 2), 100, np.uint8)
    crops = MultiCrop(64, local_crops=0, **NUMBERS)
    assert crops(dict(img=image.astype(np.int16)))['img']['global_crops'].shape == (2, 2, 64, 64)
    assert '(90x40 pixels) and all other images that are smaller' in ''.join(capfd.readouterr())
    for wrong, message in [
        (image.astype(np.float32), 'floating-point images must be in 0'),
        (image.astype(np.int64), 'images must be uint8, uint16 or floating-point'),
        (-image.astype(np.int16), 'whole numbers not below 0'),
    ]:
        with pytest.raises(ValueError, match=message):
            crops(dict(img=wrong))
    for mean, std, message in [
        ([0.5], [0.0], 'zero'),
        ([0.5] * 3, [1.0], 'image has 2 channels, mean 3 numbers and std 1'),
        ([0.5] * 2, [1.0] * 3, 'image has 2 channels, mean 2 numbers and std 3'),
    ]:
        with pytest.raises(ValueError, match=message):
            CenterImageCrop(32, mean=mean, std=std)(dict(img=image))
    for strength in (-0.1, 2.1, float('nan')):
        with pytest.raises(ValueError, match='color_strength must be from 0 to 2'):
            MultiCrop(color_strength=strength)


def test_color_strength_says_how_much_the_colors_of_crops_change():
    # An image of one color: every crop of it would be that color, without changes.
    color = torch.tensor([0.3, 0.6, 0.4]).view(3, 1, 1)
    image = color.expand(3, 64, 64).permute(1, 2, 0).numpy()

    def changes(strength):
        torch.manual_seed(0)
        crops = MultiCrop(32, local_crops=30, color_strength=strength, mean=[0.0], std=[1.0])
        result = crops(dict(img=image))['img']['local_crops']
        return (result - color).abs().amax(dim=(1, 2, 3))

    assert changes(0.0).max() < 1e-5  # rounding of the resampling and of the blur
    weak, strong = changes(0.25), changes(1.0)
    assert 0.01 < 2 * weak.mean() < strong.mean() < changes(2.0).mean()


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_folders_named_by_numbers_are_classes_in_their_order(tmp_path):
    """As in ImageNet-V2; sorted as text, class 2 would have the label 111."""

    def labels(folder):
        images = LabeledFolder(data_root=str(tmp_path), data_prefix=dict(img_path=folder))
        return {Path(image['img_path']).parent.name: image['gt_label'] for image in images}

    folders = ['v2/0', 'v2/2', 'v2/10', 'v2/111', 'mixed/2', 'mixed/10', 'mixed/n01']
    touch(tmp_path, *(f'{folder}/image.png' for folder in folders))
    assert labels('v2') == {'0': 0, '2': 1, '10': 2, '111': 3}
    assert labels('mixed') == {'10': 0, '2': 1, 'n01': 2}


def test_inaturalist_is_read_as_downloaded(tmp_path):
    content = dict(
        images=[
            dict(id=7, file_name='train_val/b/2.jpg'),
            dict(id=3, file_name='train_val/a/1.jpg'),
        ],
        categories=[dict(id=12, name='moth'), dict(id=5, name='owl'), dict(id=9, name='fern')],
        annotations=[
            dict(id=1, image_id=3, category_id=9),
            dict(id=2, image_id=7, category_id=12),
        ],
    )
    (tmp_path / 'train.json').write_text(json.dumps(content))
    settings = dict(data_root=str(tmp_path), data_prefix=dict(img_path='.'))
    data = INaturalist(**settings, ann_file='train.json')
    assert data.metainfo['classes'] == ('owl', 'fern', 'moth')
    found = [(Path(item['img_path']).relative_to(tmp_path), item['gt_label']) for item in data]
    assert found == [(Path('train_val/a/1.jpg'), 1), (Path('train_val/b/2.jpg'), 2)]
    (tmp_path / 'bad.json').write_text('[]')
    with pytest.raises(DataError, match=r'bad\.json: not a dict of images'):
        INaturalist(**settings, ann_file='bad.json')


def test_a_list_chooses_the_images_of_a_folder(tmp_path):
    def found(**settings):
        place = dict(data_root=str(tmp_path), data_prefix=dict(img_path='images'))
        data = UnlabeledFolder(**place, **settings)
        paths = [Path(data.get_data_info(i)['img_path']) for i in range(len(data))]
        return [str(path.relative_to(tmp_path / 'images')) for path in paths]

    (tmp_path / 'images').mkdir()
    with pytest.raises(DataError, match='has no images: files that end in one of'):
        found()
    touch(tmp_path / 'images', 'a.png', 'b c.png', 'below/d.jpg', 'e.png', 'no image.txt')
    assert found() == ['a.png', 'b c.png', 'below/d.jpg', 'e.png']
    names = tmp_path / 'train.txt'
    names.write_text('b c\nbelow/d.jpg\n\na.png\n')
    assert found(ann_file='train.txt') == ['a.png', 'b c.png', 'below/d.jpg']
    for text, message in [('a.png\nf\n', 'names f, which is not in'), ('\n', 'names no images')]:
        names.write_text(text)
        with pytest.raises(DataError, match=message):
            found(ann_file='train.txt')


def test_another_image_takes_the_place_of_one_that_cannot_be_read(tmp_path):
    touch(tmp_path, 'a.png', 'b.png')
    settings = dict(data_root=str(tmp_path), data_prefix=dict(img_path='.'))
    only_b = UnlabeledFolder(pipeline=[keep('b.png')], **settings)
    assert only_b[0]['img_path'].endswith('b.png')
    with pytest.raises(DataError, match='has too few images that can be read'):
        UnlabeledFolder(pipeline=[keep('none')], **settings)[0]


def keep(name):
    """A step of a pipeline that reads only this file."""
    return lambda data: data if data['img_path'].endswith(name) else None
