"""The infer command: detections, labels, pictures, videos, interruptions and bad files."""

import json
import signal
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest

from xcit_mm.cli import infer
from xcit_mm.inference import inputs, journal, run, videos


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


@pytest.fixture
def call(trained, images, tmp_path):
    """A function that runs inference, by default on a folder with two images and a broken one."""

    def run_infer(head, *more, inputs=(images,)):
        config, checkpoint = trained(head)
        words = [*inputs, '--config', config, '--checkpoint', checkpoint, *more]
        return infer.main([str(word) for word in [*words, '--out-dir', tmp_path / 'out']])

    return run_infer


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_an_interrupted_run_continues_without_force(head, call, tmp_path, monkeypatch, capfd):
    read, out = [], tmp_path / 'out'

    def read_image(path):
        read.append(path.name)
        if len(read) == 2:
            signal.raise_signal(signal.SIGINT)
        return inputs.read_image(path)

    monkeypatch.setattr(run, 'read_image', read_image)
    assert call(head) == 130
    error = capfd.readouterr().err
    assert error.splitlines()[-1].startswith('Interrupted. 1 of 3 inputs are done; the same comm')
    assert 'Traceback' not in error
    with (out / journal.FILE).open('a') as file:
        file.write('{"file": half a line, as after a kill')
    assert call(head, '--score-thr', '0.9') == 2  # other settings
    assert 'other images, weights or settings' in capfd.readouterr().err
    assert call(head) == 1 and read == ['0.jpg', '1.jpg', '1.jpg', 'broken.jpg']
    assert not (out / journal.FILE).exists()
    if head == 'mask_rcnn':
        content = json.loads((out / 'predictions.json').read_text())
        assert [Path(i['file_name']).name for i in content['images']] == ['0.jpg', '1.jpg']
        assert {a['image_id'] for a in content['annotations']} == {0, 1}
    else:
        assert {path.name for path in (out / 'labels').iterdir()} == {'0.png', '1.png'}
    assert call(head) == 2 and '--force' in capfd.readouterr().err


def write_video(path, images):
    """A video of seven frames with an odd size."""
    frame = cv2.resize(cv2.imread(str(images / '0.jpg')), (97, 65))
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'mp4v'), 10.0, (97, 65))
    for _ in range(7):
        writer.write(frame)
    writer.release()


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_a_video_gives_a_video_with_predictions_drawn(head, call, images, tmp_path, capfd):
    clip, result = tmp_path / 'clip.mp4', tmp_path / 'out' / 'vis' / 'clip.mp4'
    write_video(clip, images)
    (tmp_path / 'broken.avi').write_bytes(b'not a video')
    both = (clip, tmp_path / 'broken.avi')
    assert call(head, '--score-thr', '0', inputs=both) == 1
    printed = capfd.readouterr().out
    assert f'skipped, cannot be read: {tmp_path}/broken.avi' in printed
    assert '1 of 2 inputs' in printed and 'predictions' not in printed
    plain, drawn = mmcv.VideoReader(str(clip)), mmcv.VideoReader(str(result))
    assert len(drawn) == len(plain) == 7 and drawn.fps == plain.fps == 10
    assert drawn.resolution == plain.resolution
    assert np.abs(drawn[3].astype(int) - plain[3]).mean() > 10
    assert {path.name for path in (tmp_path / 'out').rglob('*.*')} == {'clip.mp4'}
    assert call(head, inputs=(clip,)) == 2 and 'clip.mp4 already' in capfd.readouterr().err
    assert call(head, '--no-vis', '--force', inputs=(clip,)) == 2
    assert 'leaves nothing to write' in capfd.readouterr().err


def test_a_camera_that_is_not_there_is_skipped(call, capfd):
    assert call('sem_fpn', inputs=('99',)) == 1
    assert 'skipped, cannot be read: 99' in capfd.readouterr().out


def test_ctrl_c_ends_the_video_of_a_camera(trained, call, images, tmp_path, monkeypatch):
    write_video(tmp_path / 'clip.mp4', images)

    def frames():
        for i, frame in enumerate(mmcv.VideoReader(str(tmp_path / 'clip.mp4'))):
            if i == 3:
                signal.raise_signal(signal.SIGINT)
            yield frame

    # No camera here: a video stands in for it.
    camera = videos.Video(frames(), None, 10.0, (97, 65))
    monkeypatch.setattr(run, 'open_video', lambda source: camera)
    assert call('sem_fpn', inputs=('0',)) == 0
    assert len(mmcv.VideoReader(str(tmp_path / 'out' / 'vis' / 'camera_0.mp4'))) == 3


def test_what_a_folder_leaves_out_is_named(call, images, capfd):
    write_video(images / 'clip.mp4', images)
    (images / 'moving.GIF').write_bytes(b'GIF89a')
    (images / 'notes.txt').write_text('notes')
    assert call('sem_fpn', '--no-vis') == 1
    printed = capfd.readouterr().out
    for name in ('clip.mp4', 'moving.GIF'):
        assert f'left out, a file type that is not read from folders: {images / name}' in printed
    assert 'notes.txt' not in printed and '2 of 3 images' in printed


def test_images_that_are_too_small_or_too_thin_are_skipped_and_named(call, images, capfd):
    cv2.imwrite(str(images / 'small.png'), np.zeros((1, 1, 3), np.uint8))
    cv2.imwrite(str(images / 'thin.png'), np.zeros((1, 2000, 3), np.uint8))
    no_resize = 'test_dataloader.dataset.pipeline.1.scale_factor=1.0'
    setting = [no_resize, 'test_dataloader.dataset.pipeline.1.scale=None']
    chosen = [images / name for name in ('small.png', '0.jpg')]
    assert call('sem_fpn', '--cfg-options', *setting, inputs=chosen) == 1
    printed = capfd.readouterr().out
    assert 'skipped, 1x1 pixels: images must be at least one patch in size' in printed
    assert 'small.png' in printed and '1 of 2 images' in printed
    assert call('sem_fpn', '--force', inputs=[images / 'thin.png', images / '0.jpg']) == 1
    assert 'skipped, 2000x1 pixels: ' in capfd.readouterr().out


def test_a_checkpoint_of_another_model_is_refused(call, trained, images, tmp_path, capfd):
    _, checkpoint = trained('upernet')
    other = ['--checkpoint', checkpoint]  # argparse takes the last one
    assert call('sem_fpn', *other) == 2
    assert 'does not belong to this config' in capfd.readouterr().err
    assert not (tmp_path / 'out' / 'labels').exists()
    assert call('sem_fpn', *other, '--allow-partial', inputs=[images / '0.jpg']) == 0
