"""Segmentation over strips and tiles, and by sliding windows, is that of mmseg."""

import numpy as np
import pytest
import tifffile
import torch

from xcit_mm.errors import UserError
from xcit_mm.large import WholeImage
from xcit_mm.large.heads import logits_map
from xcit_mm.large.images import ArrayImage, Prepare
from xcit_mm.large.maps import ResizedMap
from xcit_mm.large.segment import WholeSegmentation, classify
from xcit_mm.large.sliding import segment_windows
from xcit_mm.large.windows import tiles

from ..tiny import build, recipe
from .test_whole import plan_of


def make_segmentor(head, patch_size=16, **settings):
    cfg = recipe(head, patch_size)
    cfg.model.decode_head.update(num_classes=5, **settings)
    cfg.model.auxiliary_head = None
    model = build(cfg)
    with torch.no_grad():  # center the logits, so that labels differ from place to place
        logits = model.decode_head(model.extract_feat(torch.randn(1, 3, 128, 128)))
        model.decode_head.conv_seg.bias -= logits.mean((0, 2, 3))
    return model


def reference_logits(model, image, infer='encode_decode'):
    """Mmseg's own, for the image at its own size."""
    bgr = torch.from_numpy(np.ascontiguousarray(image[..., ::-1])).permute(2, 0, 1)
    inputs = model.data_preprocessor({'inputs': [bgr]})['inputs']
    meta = dict(img_shape=image.shape[:2], ori_shape=image.shape[:2])
    with torch.no_grad():
        return getattr(model, infer)(inputs, [meta])


def assert_labels(labels, logits):
    """Where two classes are equal but for rounding, either is right."""
    chosen = logits.gather(0, torch.from_numpy(np.asarray(labels, np.int64))[None])[0]
    assert ((logits.amax(0) - chosen) / logits.abs().max()).max() < 2e-5
    assert len(np.unique(labels)) > 1


@pytest.mark.parametrize(
    ('head', 'patch_size', 'settings'),
    [
        ('sem_fpn', 16, {}),
        ('sem_fpn', 8, {'align_corners': True}),
        ('upernet', 16, {}),
        ('upernet', 8, {'pool_scales': (1, 4)}),
    ],
)
def test_logits_are_those_of_mmseg(head, patch_size, settings):
    generator = np.random.default_rng(patch_size)
    model = make_segmentor(head, patch_size, **settings)
    for height, width in [(96, 128), *generator.integers(40, 200, (2, 2))]:
        image = generator.integers(0, 256, (height, width, 3), np.uint8)
        expected = reference_logits(model, image)
        run = WholeImage(model.backbone, prepare=Prepare(3, model.data_preprocessor))
        labels, scale = np.zeros((height, width), np.int64), expected.abs().max()
        with torch.no_grad():
            logits = logits_map(model, run(image, plan_of(model.backbone, image, rows=3)))
            scores = ResizedMap(logits, (height, width), align_corners=model.align_corners)
            for tile in tiles((height, width), 48):
                here = np.s_[..., tile.top : tile.bottom, tile.left : tile.right]
                torch.testing.assert_close(
                    scores.read(tile) / scale, expected[here] / scale, atol=1e-5, rtol=0
                )
                labels[here] = classify(model, logits, (height, width), tile)
        assert_labels(labels, expected[0])


@pytest.mark.parametrize(('window', 'overlap', 'size'), [(64, 16, (150, 118)), (96, 0, (90, 200))])
def test_sliding_windows_are_those_of_mmseg(window, overlap, size, tmp_path):
    model = make_segmentor('sem_fpn')
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    model.test_cfg.update(crop_size=(window, window), stride=(window - overlap,) * 2)
    expected = reference_logits(model, image, 'slide_inference')[0]
    steps = []
    labels = segment_windows(
        model, ArrayImage(image), tmp_path, window, overlap, lambda *step: steps.append(step)
    )
    assert_labels(labels.rows.map(0, size[0]), expected)
    assert steps[-1] == ('windows', len(steps), len(steps))


class Stopped(Exception):
    """Stands for an interruption."""


def test_an_interrupted_run_resumes_and_gives_the_same_bytes(tmp_path):
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (150, 118, 3), np.uint8)
    geo = [(33550, 'd', 3, (0.5, 0.5, 0.0), True), (34735, 'H', 4, (1, 1, 0, 0), True)]
    scene = tmp_path / 'scene.tif'
    tifffile.imwrite(scene, image, photometric='rgb', extratags=geo, tile=(64, 64))
    model = make_segmentor('sem_fpn')
    plan = plan_of(model.backbone, image, rows=4, tile=64)
    stops = iter(generator.integers(5, 12, 4).tolist())
    calls = stop = interruptions = 0

    def interrupted(*step):
        nonlocal calls
        calls += 1
        if calls == stop:
            raise Stopped

    def run(name, report=None):
        segment = WholeSegmentation(model, tmp_path / f'{name}_tokens', report=report)
        return segment(scene, tmp_path / f'{name}.tif', tmp_path / f'{name}.png', plan)

    expected = run('whole')
    while True:
        calls, stop = 0, next(stops, None)
        try:
            found = run('resumed', interrupted)
            break
        except Stopped:
            interruptions += 1
            assert not (tmp_path / 'resumed.tif').exists()
    assert interruptions >= 3 and found.read_bytes() == expected.read_bytes()
    assert (tmp_path / 'resumed.png').read_bytes() == (tmp_path / 'whole.png').read_bytes()
    assert not list(tmp_path.glob('*_tokens'))
    with tifffile.TiffFile(found) as file:
        page = file.pages[0]
        assert page.tags[33550].value == (0.5, 0.5, 0.0) and page.tags[34735].count == 4
        assert_labels(page.asarray(), reference_logits(model, image)[0])


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(type='FCNHead', in_channels=16, in_index=0), 'this segmentor has a FCNHead on a FPN'),
        (dict(norm_cfg=dict(type='GN', num_groups=1)), 'is a GroupNorm'),
    ],
)
def test_segmentors_that_cannot_run_over_tiles_are_refused(settings, message, tmp_path):
    cfg = recipe('sem_fpn', 16)
    if 'type' in settings:
        del cfg.model.decode_head['feature_strides']
    cfg.model.decode_head.update(settings)
    with pytest.raises(UserError, match=message):
        WholeSegmentation(build(cfg), tmp_path)
