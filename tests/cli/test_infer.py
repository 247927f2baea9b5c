"""The infer command: detections, labels, pictures, and files that are not images."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm.cli import infer


@pytest.fixture
def images(small_data, tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, source in enumerate(sorted((small_data / 'coco' / 'val2017').glob('*.jpg'))[:2]):
        (folder / f'{i}.jpg').write_bytes(source.read_bytes())
    (folder / 'broken.jpg').write_bytes(b'not an image')
    return folder


def test_a_detector(trained, images, tmp_path, capfd):
    out = tmp_path / 'out'
    config, checkpoint = trained('mask_rcnn')
    arguments = ['--config', config, '--checkpoint', checkpoint, '--out-dir', out]

    def call(*more):
        return infer.main([str(argument) for argument in (*more, *arguments)])

    assert call(images, '--score-thr', '0.0', '--device', 'cpu') == 1
    printed = capfd.readouterr().out
    assert 'skipped, cannot be read' in printed and '2 of 3 images' in printed
    content = json.loads((out / 'predictions.json').read_text())
    assert [Path(i['file_name']).name for i in content['images']] == ['0.jpg', '1.jpg']
    assert len(content['categories']) == 80 and content['annotations']
    for annotation in content['annotations']:
        assert {'image_id', 'category_id', 'bbox', 'score', 'segmentation'} <= annotation.keys()
    assert cv2.imread(str(out / 'vis' / '0.png')) is not None
    assert call(images) == 2 and '--force' in capfd.readouterr().err
    assert call(tmp_path / 'nothing*.jpg') == 2 and 'names no image' in capfd.readouterr().err


def test_a_segmentor(trained, images, tmp_path):
    out = tmp_path / 'out'
    config, checkpoint = map(str, trained('sem_fpn'))
    argv = [f'{images}/[01].jpg', '--config', config, '--checkpoint', checkpoint]
    assert infer.main([*argv, '--out-dir', str(out), '--device', 'cpu']) == 0
    labels = cv2.imread(str(out / 'labels' / '0.png'), cv2.IMREAD_UNCHANGED)
    image = cv2.imread(str(images / '0.jpg'))
    assert labels.shape == image.shape[:2] and labels.dtype == np.uint8
    assert (out / 'vis' / '1.png').is_file()
