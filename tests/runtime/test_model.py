"""Exported models: what they predict, against mmdet's and mmseg's postprocessing, and bad input."""

import contextlib
import json
import os
import subprocess
import sys
import venv

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

import xcit_mm_runtime
from xcit_mm_runtime import Detections, ImageError, ModelError
from xcit_mm_runtime.metadata import KEY

from ..limits import limited_memory
from ..tiny import ROOT
from .graphs import MEAN, STD, detector, metadata, random_detections, segmentor
from .without import without_torch

CLASSES = ['disc', 'bar', 'façade']


@pytest.fixture
def image():
    blocks = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    return cv2.resize(blocks, (270, 190), interpolation=cv2.INTER_CUBIC)


def weights(classes):
    return np.random.default_rng(0).normal(size=(classes, 3, 1, 1)).astype(np.float32)


def load_segmentor(path, count=3, names=CLASSES, **changes):
    info = metadata('segmentation', names, **changes)
    return xcit_mm_runtime.load(segmentor(path, weights(count), info))


def expected_logits(image, kernel, resize=(136, 96)):
    """As mmseg: resized, normalized, predicted at that size, resized to the image's."""
    resized = cv2.resize(image, resize)[..., ::-1].astype(np.float32)
    x = torch.from_numpy((resized - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)[None]
    small = F.conv2d(F.avg_pool2d(x, 4, 1), torch.from_numpy(kernel))
    logits = F.interpolate(small, size=resize[::-1], mode='bilinear')
    return F.interpolate(logits, size=image.shape[:2], mode='bilinear')[0]


@pytest.mark.parametrize('classes', [3, 300])
def test_a_segmentor_labels_each_pixel_as_mmseg_does(classes, image, tmp_path):
    names = [f'name {i}' for i in range(classes)]
    found = load_segmentor(tmp_path / 'model.onnx', classes, names)(image)
    assert found.labels.shape == image.shape[:2]
    assert found.labels.dtype == (np.uint8 if classes == 3 else np.uint16)
    logits = expected_logits(image, weights(classes))
    # Where two classes are as likely as float32 can tell, either may win.
    best = logits.topk(2, dim=0).values
    clear = (best[0] - best[1] > 1e-4 * best[0].abs().max()).numpy()
    assert clear.mean() > 0.99 and len(np.unique(found.labels)) > 2
    assert (found.labels == logits.argmax(0).numpy())[clear].all()


def test_a_batch_gives_what_its_images_give_one_by_one(image, tmp_path):
    model = load_segmentor(tmp_path / 'model.onnx')
    images = [image, image[::-1], image[:, ::-1]]
    for one, found in zip(images, model.predict_batch(images), strict=True):
        assert (found.labels == model(one).labels).all()


def test_a_runtime_without_gpus_says_what_to_install(tmp_path, monkeypatch):
    path = load_segmentor(tmp_path / 'model.onnx').path
    monkeypatch.setattr(onnxruntime, 'get_available_providers', lambda: ['CPUExecutionProvider'])
    with pytest.raises(ModelError, match='cannot use cuda: pip install onnxruntime-gpu'):
        xcit_mm_runtime.load(path, device='cuda')


def test_16_bit_files_are_scaled_by_the_bits_that_the_model_states(image, tmp_path):
    """12 bits in a 16-bit PNG: without the statement they are almost black, with a warning."""
    cv2.imwrite(str(tmp_path / '12.png'), image.astype(np.uint16) << 4)
    for depth, expected in ((12, image), (16, image >> 4), (None, image >> 4)):
        model = load_segmentor(tmp_path / 'model.onnx', bit_depth=depth)
        warned = pytest.warns(UserWarning, match='looks like 12 bits.*bit_depth=12')
        with contextlib.nullcontext() if depth else warned:
            labels = model(tmp_path / '12.png').labels
        assert (labels == model(expected).labels).all()


def test_a_segmentor_with_one_output_decides_by_its_threshold(image, tmp_path):
    model = load_segmentor(tmp_path / 'model.onnx', 1, ['no', 'yes'], binary_threshold=0.3)
    found = model(image)
    probability = expected_logits(image, weights(1))[0].sigmoid().numpy()
    clear = np.abs(probability - 0.3) > 1e-5
    assert (found.labels == (probability > 0.3))[clear].all() and 0 < found.labels.mean() < 1


def test_raw_bytes_are_taken_in_either_order(image, tmp_path):
    kernel = weights(3)
    labels = []
    for order in ('rgb', 'bgr'):
        given = {'dtype': 'uint8', 'channel_order': order, 'mean': None, 'std': None}
        info = metadata('segmentation', CLASSES, input=given, resize=None)
        chosen = kernel if order == 'rgb' else kernel[:, ::-1].copy()
        labels.append(xcit_mm_runtime.load(segmentor(tmp_path / order, chosen, info))(image).labels)
    assert (labels[0] == labels[1]).mean() > 0.999


@pytest.mark.parametrize('with_masks', [True, False])
def test_a_detector_gives_boxes_and_masks_in_pixels_of_the_image(with_masks, image, tmp_path):
    given = random_detections(12, (96, 136))
    given['boxes'][0] = [10.5, 20.5, 10.5, 20.5]  # without extent
    given['labels'][-2:] = -1  # fills up a batch
    if not with_masks:
        del given['masks']
    path = detector(tmp_path / 'model.onnx', given, metadata('detection', CLASSES))
    found = xcit_mm_runtime.load(path)(image)
    height, width = image.shape[:2]
    factors = np.float32([136 / width, 96 / height, 136 / width, 96 / height])
    assert (found.boxes == given['boxes'][:10] / factors).all()
    assert (found.scores == given['scores'][:10]).all()
    assert found.names == [CLASSES[label] for label in given['labels'][:10]]
    if not with_masks:
        assert found.masks is None
        return
    assert found.masks.shape == (10, height, width) and found.masks.dtype == bool
    for i in range(10):
        one = torch.from_numpy(given['masks'][i])[None, None]
        boxes = torch.from_numpy(found.boxes[i : i + 1])
        expected = _do_paste_mask(one, boxes, height, width, skip_empty=False)[0][0].numpy()
        clear = np.abs(expected - 0.5) > 1e-4
        assert (found.masks[i] == (expected >= 0.5))[clear].all() and clear.mean() > 0.99


def test_a_backbone_gives_its_levels(image, tmp_path):
    info = metadata('features', [])
    path = segmentor(tmp_path / 'model.onnx', weights(5), info)
    graph = onnx.load(path)
    graph.graph.node[-1].output[0] = graph.graph.output[0].name = 'level_0'
    onnx.save(graph, path)
    model = xcit_mm_runtime.load(path)
    (level,) = model.features(image)
    assert level.shape == (5, 96, 136)
    with pytest.raises(ModelError, match='contains only a backbone'):
        model(image)


def test_images_that_the_model_cannot_take_are_refused_in_a_sentence(image, tmp_path):
    model = load_segmentor(tmp_path / 'model.onnx', resize=None)
    for bad, message in (
        (image.astype(np.float32), 'must be an array of uint8, 0 to 255, not of float32'),
        (image[..., 0], r'must have the shape \(H, W, 3\), BGR, not \(190, 270\)'),
        (np.dstack([image, image[..., 0]]), r'not \(190, 270, 4\)'),
        (image[:0], r'not \(0, 270, 3\)'),
        (image[:1, :1], 'at least one patch in size, 8x8, not 1x1'),
        (tmp_path / 'model.onnx', 'is not an image, or is damaged'),
        (tmp_path / 'none.png', 'cannot be read: No such file'),
    ):
        with pytest.raises(ImageError, match=message) as caught:
            model(bad)
        assert '\n' not in str(caught.value)
    cv2.imwrite(str(tmp_path / 'image.png'), image)
    assert (model(tmp_path / 'image.png').labels == model(image).labels).all()


def test_files_that_are_no_exported_models_are_refused_in_a_sentence(tmp_path, monkeypatch):
    good, bad = tmp_path / 'good.onnx', tmp_path / 'bad.onnx'
    content = segmentor(good, weights(3), metadata('segmentation', CLASSES)).read_bytes()
    fitting, others = metadata('segmentation', CLASSES), 'does not have the inputs and outputs'
    for info, message in (
        (fitting | {'format': 3}, 'written by a newer version, in format 3'),
        (fitting | {'task': 'poetry'}, others),
        (fitting | {'task': 'detection'}, others),
        (fitting | {'input': {'dtype': 'int4'}}, others),
        ({k: v for k, v in fitting.items() if k != 'resize'}, "damaged .*'resize'"),
        ('no object', 'is damaged'),
        (None, 'xcit-mm export did not write'),
        (b'\x89PNG\r\n\x1a\n', 'damaged or not an ONNX file'),
        (b'', 'damaged or not an ONNX file|did not write'),
        (content[: len(content) // 2], 'damaged or not an ONNX file'),
    ):
        if isinstance(info, bytes):
            bad.write_bytes(info)
        else:
            model = onnx.load(good)
            onnx.helper.set_model_props(model, {KEY: json.dumps(info)} if info else {})
            onnx.save(model, bad)
        with pytest.raises(ModelError, match=message) as caught:
            xcit_mm_runtime.load(bad)
        assert '\n' not in str(caught.value)
    with pytest.raises(ModelError, match='There is no model'):
        xcit_mm_runtime.load(tmp_path / 'none.onnx')
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(ModelError, match='pip install onnxruntime'):
        xcit_mm_runtime.load(good)


COMMAND = 'from xcit_mm_runtime.__main__ import main; sys.exit(main(sys.argv[1:]))'


def test_the_command_runs_without_torch(image, tmp_path):
    info = metadata('detection', CLASSES, category_ids=[4, 5, 9])
    given = random_detections(6, (96, 136))
    detects = detector(tmp_path / 'det.onnx', given, info)
    segments = segmentor(tmp_path / 'seg.onnx', weights(3), metadata('segmentation', CLASSES))
    (tmp_path / 'images').mkdir()
    cv2.imwrite(str(tmp_path / 'images' / 'a.png'), image)
    (tmp_path / 'images' / 'b.jpg').write_bytes(b'no image')
    for model in (detects, segments):
        out = tmp_path / model.stem
        words = [model, tmp_path / 'images', '--out-dir', out]
        run = without_torch(COMMAND, *words)
        assert run.returncode == 1, run.stderr
        assert f'skipped, cannot be read: {tmp_path}/images/b.jpg\n1 of 2 images' in run.stdout
        found = xcit_mm_runtime.load(model)(image)
        picture = cv2.imread(str(out / 'vis' / 'a.png'))
        assert (picture == found.draw(image)).all()
        again = without_torch(COMMAND, *words)
        assert again.returncode == 2 and '--force' in again.stderr
        if isinstance(found, Detections):
            content = json.loads((out / 'predictions.json').read_text())
            assert {a['category_id'] for a in content['annotations']} <= {4, 5, 9}
            assert len(content['annotations']) == 6 and len(content['images']) == 1
        else:
            labels = cv2.imread(str(out / 'labels' / 'a.png'), cv2.IMREAD_UNCHANGED)
            assert (labels == found.labels).all()


def test_memory_that_runs_out_is_told_from_a_bad_image(tmp_path):
    model = load_segmentor(tmp_path / 'model.onnx', 300, resize=None)
    model(np.zeros((64, 64, 3), np.uint8))
    # 300 classes take 1.2 GB.
    with limited_memory(300 << 20), pytest.raises(MemoryError):
        model(np.zeros((1000, 1000, 3), np.uint8))


def test_nothing_heavy_is_imported():
    heavy = ('torch', 'PIL', 'onnxruntime')
    run = without_torch(f'import xcit_mm_runtime; print([m for m in {heavy} if m in sys.modules])')
    assert run.stdout.strip() == '[]', run.stderr


def test_the_old_name_works_with_one_warning():
    code = 'from xcit_mm_deploy import load, rle; from xcit_mm_deploy.errors import ModelError\n'
    code += 'import xcit_mm_runtime; print(ModelError is xcit_mm_runtime.ModelError)'
    imported = without_torch(code)
    assert imported.stdout == 'True\n' and imported.stderr.count('called xcit_mm_runtime') == 1
    command = without_torch('import runpy; runpy.run_module("xcit_mm_deploy", alter_sys=True, '
                            'run_name="__main__")', '--help')  # fmt: skip
    assert command.stdout.startswith('usage: python -m xcit_mm_runtime'), command.stderr
    assert command.stderr.count('called xcit_mm_runtime') == 1


PACKAGES = ('numpy', 'onnxruntime', 'opencv-python-headless', 'pillow')


@pytest.mark.long
def test_a_new_environment_needs_only_four_packages(image, tmp_path):
    """What docs/deploy.md installs, in a new virtual environment."""
    venv.create(tmp_path / 'venv', with_pip=True)
    python = tmp_path / 'venv' / 'bin' / 'python'
    subprocess.run([python, '-m', 'pip', 'install', '-q', *PACKAGES], check=True)
    subprocess.run([python, '-m', 'pip', 'install', '-q', '--no-deps', ROOT], check=True)
    path = segmentor(tmp_path / 'seg.onnx', weights(3), metadata('segmentation', CLASSES))
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    words = [python, '-m', 'xcit_mm_runtime', path, tmp_path / 'a.png', '--out-dir', tmp_path / 'o']
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    subprocess.run(words, check=True, cwd=tmp_path, env=env)
    labels = cv2.imread(str(tmp_path / 'o' / 'labels' / 'a.png'), cv2.IMREAD_UNCHANGED)
    assert (labels == xcit_mm_runtime.load(path)(image).labels).mean() > 0.999
    assert (tmp_path / 'o' / 'vis' / 'a.png').is_file()
