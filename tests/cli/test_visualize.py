"""tools/visualize.py on images of every kind."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from xcit_mm.visualization import observe
from xcit_mm.visualization.load import load_subject

from ..limits import limited_memory
from ..tiny import call as call_command


@pytest.fixture(scope='module')
def weights(backbone, classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp('weights')
    for name, model in (('backbone', backbone), ('classifier', classifier)):
        torch.save(model.state_dict(), folder / f'{name}.pth')
    return folder


@pytest.fixture
def run(weights, tmp_path):
    """The command with its arguments, in this process."""

    def call(*arguments, model='backbone'):
        weight_file, out_dir = weights / f'{model}.pth', tmp_path / 'o'
        words = ['--dpi', 50, *arguments, '--checkpoint', weight_file, '--out-dir', out_dir]
        return call_command('visualize', *words)

    return call


KINDS = {
    'one color': lambda image: np.full_like(image, 77),
    'one patch': lambda image: image[:8, :8],
    'gray-scale': lambda image: image[..., 0],
    'alpha': lambda image: np.dstack([image, image[..., 0]]),
    'sixteen bits': lambda image: image.astype(np.uint16) * 257,
    'long': lambda image: np.tile(image[:8], (1, 12, 1)),
}


def drawn(path):
    picture = cv2.imread(str(path))
    assert picture is not None and picture.shape[1] == 800 and picture.std() > 5
    return picture


@pytest.mark.long
def test_an_image_that_does_not_fit_in_memory_is_skipped(run, image, tmp_path, capsys):
    small, large = tmp_path / 'small.png', tmp_path / 'large.png'
    cv2.imwrite(str(small), image)
    cv2.imwrite(str(large), cv2.resize(image, (6000, 6000)))
    # What is allocated once is there before memory is limited.
    assert run(small, '--pictures', 'magnitude') == 0
    capsys.readouterr()
    # Its pixels have 108 MB, their float32 numbers 432. Each new thread may reserve 64 MB.
    with limited_memory(400 << 20):
        assert run(large, small, '--pictures', 'magnitude', '--force') == 1
    printed = capsys.readouterr().out
    assert 'large.png: not enough memory; --max-side makes images smaller\n' in printed
    assert '1 of 2 images' in printed


def test_images_of_every_kind(run, image, tmp_path, capsys):
    for name, change in KINDS.items():
        cv2.imwrite(str(tmp_path / f'{name}.png'), change(image))
    cv2.imwrite(str(tmp_path / 'too small.png'), image[:7, :20])
    (tmp_path / 'broken.png').write_bytes(b'no image')
    assert run(tmp_path) == 1
    printed = capsys.readouterr().out
    assert {path.stem for path in (tmp_path / 'o').iterdir()} == KINDS.keys()
    for name in KINDS:
        drawn(tmp_path / 'o' / f'{name}.png')
    assert 'too small.png: images must be at least one patch in size, 8x8, not 7x20' in printed
    assert 'broken.png: it cannot be read' in printed
    assert 'left out: class_attention; the backbone of a detector' in printed
    assert '6 of 8 images; 6 PNGs in ' in printed


def test_separate_files_of_a_classifier_and_no_overwriting(run, image, tmp_path, capsys):
    path = tmp_path / 'image.png'
    cv2.imwrite(str(path), image)
    options = ('--separate', '--layers', 1, 12, '--per-head')
    assert run(path, *options, model='classifier') == 0
    assert 'left out: pyramid; a classifier' in capsys.readouterr().out
    names = ('magnitude', 'class_attention', 'covariance')
    files = {name: tmp_path / 'o' / f'image_{name}.png' for name in names}
    assert set((tmp_path / 'o').iterdir()) == set(files.values())
    sizes = {name: drawn(file).shape for name, file in files.items()}
    assert sizes['magnitude'][0] > sizes['class_attention'][0]  # eight rows against two
    before = files['magnitude'].read_bytes()
    assert run(path, *options, model='classifier') == 2 and '--force' in capsys.readouterr().err
    assert files['magnitude'].read_bytes() == before
    assert run(path, '--separate', '--force', model='classifier') == 0
    assert files['magnitude'].read_bytes() != before


@pytest.mark.long
def test_large_images_are_computed_at_full_size_and_drawn_at_screen_size(
    run, tmp_path, monkeypatch
):
    large = cv2.resize(np.eye(4, dtype=np.uint8) * 255, (1200, 900))
    cv2.imwrite(str(tmp_path / 'large.png'), large)
    seen = []
    original = observe.observe
    monkeypatch.setattr(
        observe, 'observe', lambda b, x, o: (seen.append(x.shape), original(b, x, o))
    )
    assert run(tmp_path / 'large.png', '--pictures', 'magnitude', '--layers', 1) == 0
    assert seen == [(1, 3, 900, 1200)]
    assert drawn(tmp_path / 'o' / 'large.png').shape[0] < 800
    assert run(tmp_path / 'large.png', '--max-side', 200, '--force', '--layers', 'all') == 0
    assert seen[1] == (1, 3, 150, 200)


@pytest.mark.parametrize('task, size', [('mask_rcnn', (96, 128)), ('sem_fpn', (96, 128))])
def test_images_are_resized_as_in_the_test_pipeline(
    trained, backbone, tmp_path, monkeypatch, task, size
):
    cv2.imwrite(str(tmp_path / 'large.png'), np.zeros((900, 1200, 3), np.uint8))
    config, checkpoint = trained(task)  # its pipeline resizes to (160, 96)
    seen = []
    original = observe.observe
    monkeypatch.setattr(
        observe, 'observe', lambda b, x, o: (seen.append(tuple(x.shape[2:])), original(b, x, o))
    )

    def call(*options):
        words = [tmp_path / 'large.png', '--checkpoint', checkpoint, '--config', config]
        words += ['--pictures', 'magnitude', '--dpi', 50, '--force', '--out-dir', tmp_path / 'o']
        assert call_command('visualize', *words, *options) == 0
        return seen[-1]

    assert call() == size
    assert call('--max-side', 160) == (120, 160)
    assert call('--full-size') == (900, 1200)
    # Without a config, the one in the checkpoint is read.
    saved, text = tmp_path / 'saved.pth', Config.fromfile(config).pretty_text
    torch.save({'meta': {'cfg': text}, 'state_dict': backbone.state_dict()}, saved)
    assert load_subject(str(saved)).resize == {'scale': [160, 96], 'keep_ratio': True}


def test_what_raised_a_score(trained, small_data, tmp_path, capsys):
    config, checkpoint = trained('mask_rcnn')  # which finds 10 objects in each image
    images = sorted((small_data / 'coco/val2017').iterdir())
    words = [*images, '--config', config, '--checkpoint', checkpoint, '--out-dir', tmp_path]
    assert call_command('visualize', *words, '--detection', 2, '--layers', 1, 4, '--dpi', 50) == 0
    assert f'2 of 2 images; 2 PNGs in {tmp_path}' in capsys.readouterr().out
    for image in images:
        drawn(tmp_path / f'{image.stem}_detection_2.png')
    assert call_command('visualize', *words, '--detection', 11) == 1
    assert capsys.readouterr().out.count('it has only 10 detections') == 2
