"""Segmentation over strips and tiles is that of the whole image."""

import numpy as np
import pytest
import tifffile
import torch
from mmengine.registry import init_default_scope

from tests.large.test_whole import plan_of
from tests.tiny import recipe
from xcit_mm.large import WholeImage
from xcit_mm.large.heads import logits_map
from xcit_mm.large.images import Prepare
from xcit_mm.large.maps import ResizedMap
from xcit_mm.large.segment import WholeSegmentation, classify
from xcit_mm.large.windows import tiles


def make_segmentor(head, patch_size=16, **settings):
    from mmseg.registry import MODELS

    init_default_scope('mmseg')
    model = recipe(head, patch_size).model
    model.decode_head.num_classes = 5
    model.backbone.layer_scale_init = 1.0
    model.decode_head.update(settings)
    model.auxiliary_head = None
    model = MODELS.build(model)
    with torch.no_grad():
        for name, value in model.named_buffers():
            if 'running_var' in name:
                value.uniform_(0.5, 1.5)
            elif 'running_mean' in name:
                value.normal_(std=0.1)
        # A head of random weights would have all but equal logits, and labels would be chance.
        torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    return model.eval()


def reference_logits(model, image):
    """Mmseg's own, for the image at its own size."""
    bgr = torch.from_numpy(np.ascontiguousarray(image[..., ::-1])).permute(2, 0, 1)
    inputs = model.data_preprocessor({'inputs': [bgr]})['inputs']
    meta = dict(img_shape=image.shape[:2], ori_shape=image.shape[:2])
    with torch.no_grad():
        return model.encode_decode(inputs, [meta])


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
        levels = run(image, plan_of(model.backbone, image, rows=3))
        with torch.no_grad():
            logits = logits_map(model, levels)
            scores = ResizedMap(logits, image.shape[:2], align_corners=model.align_corners)
            for tile in tiles(image.shape[:2], 48):
                part = expected[:, :, tile.top : tile.bottom, tile.left : tile.right]
                scale = expected.abs().max()
                torch.testing.assert_close(
                    scores.read(tile) / scale, part / scale, atol=1e-5, rtol=0
                )
                labels = classify(model, logits, image.shape[:2], tile)
                # Where two classes are equal but for rounding, either is right.
                chosen = part[0].gather(0, torch.from_numpy(labels)[None])[0]
                assert ((part[0].amax(0) - chosen) / scale).max() < 2e-5


class Stopped(Exception):
    """Stands for an interruption."""


def write_tiff(path, image, **options):
    geo = [(33550, 'd', 3, (0.5, 0.5, 0.0), True), (34735, 'H', 4, (1, 1, 0, 0), True)]
    tifffile.imwrite(path, image, photometric='rgb', extratags=geo, **options)
    return path


def test_an_interrupted_run_resumes_and_gives_the_same_bytes(tmp_path):
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (150, 118, 3), np.uint8)
    scene = write_tiff(tmp_path / 'scene.tif', image, tile=(64, 64), compression='zlib')
    model = make_segmentor('sem_fpn')
    plan = plan_of(model.backbone, image, rows=4, tile=64, on_disk=True)
    stops = iter(generator.integers(5, 12, 4).tolist())
    calls = stop = interruptions = 0

    def interrupted(*step):
        nonlocal calls
        calls += 1
        if calls == stop:
            raise Stopped

    def run(name, report=None):
        folder = tmp_path / f'{name}_tokens'
        segment = WholeSegmentation(model, folder, job='a', report=report)
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
        labels = page.asarray()
        assert page.tags[33550].value == (0.5, 0.5, 0.0) and page.tags[34735].count == 4
    assert labels.shape == image.shape[:2] and len(np.unique(labels)) > 1
    logits = reference_logits(model, image)[0]
    chosen = logits.gather(0, torch.from_numpy(labels.astype(np.int64))[None])[0]
    assert ((logits.amax(0) - chosen) / logits.abs().max()).max() < 2e-5
