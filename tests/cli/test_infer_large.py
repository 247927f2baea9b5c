"""The infer command on large images: whole, and by sliding windows."""

import json

import cv2
import numpy as np
import pytest
import tifffile
from mmdet.datasets import CocoDataset
from pycocotools import mask as coco

from xcit_mm.large import segment

from ..tiny import call as call_command


@pytest.fixture
def scene(tmp_path):
    path = tmp_path / 'scene.tif'
    pixels = np.random.default_rng(0).integers(0, 256, (150, 118, 3), np.uint8)
    tifffile.imwrite(path, pixels, photometric='rgb')
    return path


@pytest.fixture
def call(trained, scene, tmp_path):
    def run(head, *options):
        config, checkpoint = trained(head)
        arguments = [scene, '--config', config, '--checkpoint', checkpoint, '--device', 'cpu']
        return call_command('infer', *arguments, '--out-dir', tmp_path / 'out', *options)

    return run


def test_a_segmentor_on_a_whole_scene(call, scene, tmp_path, monkeypatch, capfd):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(segment, 'classify', interrupted)
        assert call('sem_fpn', '--whole', '--memory', '4GB') == 130
    assert 'The same command continues' in capfd.readouterr().err
    out = tmp_path / 'out'
    assert not list(out.rglob('*.tif')) and not list(out.rglob('*.png'))
    assert call('sem_fpn', '--whole', '--memory', '5GB') == 2
    assert 'unfinished work' in capfd.readouterr().err
    assert call('sem_fpn', '--whole', '--memory', '4GB') == 0
    assert 'labels: ' in capfd.readouterr().out
    labels = tifffile.imread(out / 'labels' / 'scene.tif')
    assert labels.shape == (150, 118) and labels.dtype == np.uint8
    assert cv2.imread(str(out / 'vis' / 'scene.png')).shape == (150, 118, 3)
    assert not (out / 'unfinished').exists()
    assert call('sem_fpn', '--whole') == 2 and '--force' in capfd.readouterr().err
    assert call('sem_fpn', '--window', '64', '--overlap', '16', '--force', '--no-vis') == 0
    slid = tifffile.imread(out / 'labels' / 'scene.tif')
    assert slid.shape == labels.shape


def test_a_damaged_file_is_refused(call, scene, tmp_path, capfd):
    content = scene.read_bytes()
    scene.write_bytes(content[: len(content) // 2])
    assert call('sem_fpn', '--whole') == 2 and 'is cut off' in capfd.readouterr().err
    assert not list((tmp_path / 'out').rglob('*.tif'))


def test_a_detector_by_windows(call, scene, tmp_path, capfd):
    file, picture = tmp_path / 'annotations.json', tmp_path / 'out' / 'vis' / 'scene.png'
    kinds = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'], 200)]

    def run(image, *options):
        images = [dict(id=42, file_name=image), dict(id=1, file_name='other.tif')]
        file.write_text(json.dumps(dict(images=images, categories=kinds)))
        return call('mask_rcnn', '--ann-file', file, '--force', *options)

    assert run('none.tif', '--window', '300') == 2
    assert 'has none of the 1 images' in capfd.readouterr().err
    assert run('scene.tif', '--window', '64', '--overlap', '16', '--score-thr', '0') == 0
    content = json.loads((tmp_path / 'out' / 'predictions.json').read_text())
    (image,) = content['images']
    assert (image['height'], image['width']) == (150, 118) and content['annotations']
    assert {one['image_id'] for one in content['annotations']} == {image['id']} == {42}
    assert min(one['category_id'] for one in content['annotations']) >= 200
    boxes = np.array([a['bbox'] for a in content['annotations']])
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 0] + boxes[:, 2] <= 118.001).all()
    assert boxes[:, 0].max() > 64  # from windows other than the first
    masks = [coco.decode(one['segmentation']) for one in content['annotations']]
    assert masks[0].shape == (150, 118) and sum(mask.any() for mask in masks) > len(masks) / 2
    for mask, (x, y, width, height) in zip(masks, boxes, strict=True):
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        if len(rows):
            assert y - 1 <= rows[0] and rows[-1] <= y + height + 1
            assert x - 1 <= columns[0] and columns[-1] <= x + width + 1
    pixels = tifffile.imread(scene)[..., ::-1]
    drawn = cv2.imread(str(picture))
    assert drawn.shape == pixels.shape and (drawn != pixels).any()
    assert run('scene.tif', '--window', '300', '--score-thr', '1') == 0
    assert (cv2.imread(str(picture)) == pixels).all()
    picture.unlink()
    assert run('scene.tif', '--window', '300', '--no-vis') == 0 and not picture.exists()
