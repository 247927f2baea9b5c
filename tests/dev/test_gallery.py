"""The gallery, and the margin between objects and background that it shows."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from dev import gallery
from dev.margin import (
    Sample,
    auc,
    describe_largest,
    load_samples,
    object_margin,
    token_cover,
)
from xcit_mm.datasets.shapes import make_shapes
from xcit_mm.visualization import Normalize, query_key_magnitude


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(0)
    larger, smaller = rng.integers(0, 9, 40), rng.integers(0, 7, 30)
    pairs = [(a > b) + (a == b) / 2 for a in larger for b in smaller]
    assert auc(larger, smaller) == pytest.approx(np.mean(pairs))
    assert auc(np.array([2.0]), np.array([1.0])) == 1 and auc(larger, larger) == 0.5


def test_cover_counts_only_pixels_within_the_image():
    mask = np.zeros((10, 12), bool)
    mask[:4, :8] = True
    mask[8:, 8:] = True
    np.testing.assert_allclose(token_cover(mask, (2, 2), 8), [[0.5, 0], [0, 1]])


def test_margin_is_measured_on_objects_and_background(backbone, image):
    mask = np.zeros(image.shape[:2], bool)
    mask[16:40, 24:64] = True
    nothing = np.zeros_like(mask)  # left out
    samples = [Sample(image, m, np.ones(1, bool)) for m in (mask, ~mask, nothing)]
    aucs, ratios = object_margin(backbone, samples, Normalize())
    maps = query_key_magnitude(backbone, image)
    on = np.zeros(maps.shape[2:], bool)
    on[2:5, 3:8] = True
    for layer in (0, 11):
        for i in range(2):
            objects, background = maps[layer, i][on], maps[layer, i][~on]
            ratio = objects.mean() / background.mean()
            assert ratios[layer, i] == pytest.approx((ratio + 1 / ratio) / 2, rel=1e-5)
            # With objects and background swapped, the two sides of 0.5 cancel.
            assert aucs[layer, i] == pytest.approx(0.5)
    alone, _ = object_margin(backbone, samples[:1], Normalize())
    assert alone[0, 1] == pytest.approx(auc(maps[0, 1][on], maps[0, 1][~on]))


CONFIG = """
_base_ = '{root}/configs/detection/mask_rcnn_xcit_n12_8_shapes.py'
model = dict(backbone=dict(
    _delete_=True, type='XCiT', arch=dict(embed_dims=32, depth=4, num_heads=2), patch_size=8,
    out_indices=(0, 1, 2, 3)))
shapes = dict(root='{data}', train=4, val=3, size=48)
train_dataloader = dict(dataset=dict(data_root='{data}/coco/'))
val_dataloader = dict(dataset=dict(data_root='{data}/coco/'))
val_evaluator = dict(ann_file='{data}/coco/annotations/instances_val2017.json')
"""


@pytest.fixture
def run(tmp_path, pytestconfig):
    """The folder of a training run with a small backbone, and its data."""
    folder = tmp_path / 'run'
    folder.mkdir()
    data = make_shapes(tmp_path / 'data', train=4, val=3, size=48)
    text = CONFIG.format(root=pytestconfig.rootpath, data=data)
    (folder / 'config.py').write_text(text)
    cfg = Config.fromfile(folder / 'config.py')
    backbone = MODELS.build(cfg.model.backbone)
    state = {f'backbone.{name}': tensor for name, tensor in backbone.state_dict().items()}
    torch.save({'state_dict': state}, folder / 'epoch_1.pth')
    return folder


def test_samples_are_images_with_their_objects(run):
    data = run.parent / 'data' / 'coco'
    samples = load_samples(Config.fromfile(run / 'config.py'), 'val_dataloader', limit=2)
    content = json.loads((data / 'annotations' / 'instances_val2017.json').read_text())
    assert len(samples) == 2
    for info, (image, mask, classes) in zip(content['images'], samples, strict=False):
        bgr = cv2.imread(str(data / 'val2017' / info['file_name']))
        np.testing.assert_array_equal(image, bgr[..., ::-1])
        own = [a for a in content['annotations'] if a['image_id'] == info['id']]
        assert {i + 1 for i, on in enumerate(classes) if on} == {a['category_id'] for a in own}
        areas = [a['area'] for a in own]
        # Outlines run through the middle of pixels, half of which count.
        assert 0.9 * max(areas) <= mask.sum() <= 1.1 * sum(areas)


def test_gallery_makes_pictures_and_numbers(run, monkeypatch, tmp_path, capsys):
    page = tmp_path / 'page.md'
    marks = [f'<!-- {name} -->\nold\n<!-- end of {name} -->' for name in ('margin', 'classes')]
    page.write_text(f'before\n{marks[0]}\nbetween {marks[1]}\nafter\n')
    monkeypatch.setattr(gallery, 'IMAGES', (0, 2))
    assert gallery.main(['--run', str(run), '--page', str(page)]) == 0
    text = page.read_text()
    assert text.startswith('before') and text.endswith('after\n') and '\nbetween ' in text
    assert 'old' not in text and text.count('<!--') == 4
    assert '| layer |' in text and 'Largest margin' in text and 'mean AUC' in text
    names = {path.name.removeprefix('visualization_') for path in tmp_path.glob('images/*.png')}
    wanted = {f'{name}_{i}.png' for name in ('magnitude', 'class_attention') for i in (1, 2)}
    assert names == wanted | {'covariance.png', 'pyramid.png'}
    assert f'Page: {page}' in capsys.readouterr().out
    assert gallery.main(['--run', str(tmp_path / 'nothing')]) == 2
    assert 'make demo' in capsys.readouterr().err


@pytest.mark.parametrize(
    'queries, keys, expected',
    [
        ((0.6, 0.7), (0.5, 0.1), 'keys of layer 2, AUC 0.100, 0.80 times'),
        ((0.8, 0.7), (0.5, 0.3), 'queries of layer 1, AUC 0.800, 0.80 times'),
    ],
)
def test_the_largest_margin_may_be_above_or_below_half(queries, keys, expected):
    ratios = {'queries: ratio': 0.8, 'keys: ratio': 0.8}
    rows = [
        {'layer': i + 1, 'queries: AUC': q, 'keys: AUC': k, **ratios}
        for i, (q, k) in enumerate(zip(queries, keys, strict=True))
    ]
    assert expected in describe_largest(rows)
