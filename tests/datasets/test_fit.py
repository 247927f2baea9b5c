"""The settings of a detector follow from the sizes and numbers of the objects in its data."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.models.task_modules import AnchorGenerator
from mmdet.structures.bbox import bbox_overlaps
from mmengine.registry import DATASETS, init_default_scope

from xcit_mm.configs import bit_depth, resizing
from xcit_mm.datasets.fit import SCALES, choose_fit
from xcit_mm.datasets.objects import STRIDES, Objects, anchor_shapes, best_overlaps
from xcit_mm.datasets.problems import MISFITS
from xcit_mm.deploy.metadata import Options, describe
from xcit_mm.engine.config import load_config
from xcit_mm.engine.pace import Pace
from xcit_mm.inference import load_predictor
from xcit_mm_runtime.coco import read_coco

from ..tiny import call, shrink
from .own_data import write_cells


def objects_of(sides, images=((640, 480),), per_image=10, seed=0):
    """Boxes with sides from a range, about as wide as high, in images of some sizes."""
    rng = np.random.default_rng(seed)
    images = np.array(images, float)
    owners = np.repeat(np.arange(len(images)), per_image)
    boxes = rng.uniform(*sides, (len(owners), 1)) * rng.uniform(0.8, 1.25, (len(owners), 2))
    return Objects(images, boxes, owners)


def nuclei():
    """Images of many sizes with many small objects, as microscopes take them."""
    sizes = [(256, 256)] * 6 + [(520, 696), (360, 360), (1024, 1024), (1388, 1040)]
    found = objects_of((7, 30), sizes, 40)
    crowd = np.full(335, 6)
    boxes = np.concatenate([found.boxes, np.full((335, 2), 15.0)])
    return Objects(found.images, boxes, np.concatenate([found.owners, crowd]))


def test_many_small_objects_get_a_detector_that_can_see_them():
    fit = choose_fit(nuclei(), (360, 360), gpu=False)
    assert fit.patch_size == 8 and fit.resize['scale_factor'] == 1 and fit.crop == 256
    assert (fit.proposals, fit.detections) == (1000, 400)
    assert max(fit.scales) <= 6
    overlaps = best_overlaps(nuclei().boxes, anchor_shapes(fit.scales, fit.ratios))
    assert (overlaps >= 0.5).mean() >= 0.9
    # mmdet's own anchors reach next to none of them.
    assert (best_overlaps(nuclei().boxes, anchor_shapes([8], [0.5, 1, 2])) >= 0.5).mean() < 0.3
    assert 10 < fit.per_view < 40


def test_a_few_huge_images_are_cropped():
    """At their own resolution, they would not fit in memory."""
    fit = choose_fit(objects_of((7, 30), [(256, 256)] * 38 + [(3000, 3000)] * 2), (256, 256), False)
    assert fit.resize['scale_factor'] == 1 and fit.crop == 256


def test_usual_objects_keep_the_usual_settings():
    fit = choose_fit(objects_of((40, 200)), (480, 360), gpu=False)
    assert (fit.patch_size, fit.crop) == (16, None)
    assert fit.resize == {'scale': (480, 360), 'keep_ratio': True}
    assert (fit.proposals, fit.detections, fit.per_view) == (250, 100, 10)
    assert choose_fit(objects_of((40, 200)), (1067, 800), gpu=True).proposals == 1000


def test_large_images_with_small_objects_keep_their_resolution_and_get_windows():
    drone = objects_of((25, 60), images=((4000, 3000),) * 3)
    fit = choose_fit(drone, (1067, 800), gpu=True)
    assert fit.resize['scale_factor'] == 1 and (fit.patch_size, fit.crop) == (16, 800)
    longest = np.quantile(drone.boxes.max(axis=1), 0.95)
    assert longest <= fit.overlap < longest + 32
    assert 'would be smaller than 16 pixels' in fit.reasons['size']
    # Large objects are seen well at the usual size.
    usual = choose_fit(objects_of((200, 600), images=((4000, 3000),) * 3), (1067, 800), gpu=True)
    assert (usual.resize['scale'], usual.crop, usual.overlap) == ((1067, 800), None, 0)


def test_what_is_decided_stays():
    small = objects_of((10, 14))
    fit = choose_fit(small, (480, 360), gpu=False, patch_size=16, keep_anchors=True)
    assert fit.patch_size == 16 and fit.scales == [8]
    # Then images are enlarged instead, up to twice their own size.
    seen = small.scaled(fit.resize)
    assert 1.1 < np.median(seen.images / small.images) <= 2.01
    assert choose_fit(small, (480, 360), gpu=False).patch_size == 8


def test_long_objects_get_more_ratios():
    long = objects_of((40, 200))
    long.boxes[:, 0] *= 5
    fit = choose_fit(long, (480, 360), gpu=False)
    assert max(fit.ratios) == 4 or len(fit.scales) == 2


def test_anchors_are_those_of_mmdet():
    for scale in SCALES[:2]:
        generator = AnchorGenerator(strides=STRIDES, ratios=[0.5, 1.0, 2.0], scales=[scale])
        boxes = torch.cat(generator.base_anchors).numpy()
        shapes = anchor_shapes([scale], [0.5, 1.0, 2.0])
        assert shapes[:, :2] == pytest.approx(boxes[:, 2:] - boxes[:, :2], rel=1e-6)
    # A quarter of the stride from the nearest center, the overlap is that with the anchors of a
    # whole map.
    generator = AnchorGenerator(strides=[8], ratios=[0.5, 1.0, 2.0], scales=[3])
    (anchors,) = generator.grid_priors([(16, 16)], device='cpu')
    sizes = np.array([[12.0, 20.0], [40.0, 9.0], [24.0, 24.0]])
    center = 8 * 8 + 2
    boxes = torch.tensor(np.hstack([center - sizes / 2, center + sizes / 2]), dtype=torch.float32)
    expected = bbox_overlaps(boxes, anchors).max(dim=1).values.numpy()
    found = best_overlaps(sizes, anchor_shapes([3], [0.5, 1.0, 2.0], [8]))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('resize, expected', [
    (None, [10, 20]),
    ({'scale_factor': 0.5}, [5, 10]),
    ({'scale': [400, 100], 'keep_ratio': True}, [5, 10]),
    ({'scale': [100, 400], 'keep_ratio': False}, [5, 40]),
])  # fmt: skip
def test_objects_are_scaled_as_by_the_pipeline(resize, expected):
    one = Objects(np.array([[200.0, 200.0]]), np.array([[10.0, 20.0]]), np.array([0]))
    assert one.scaled(resize).boxes.tolist() == [expected]


@pytest.fixture
def cells(tmp_path, monkeypatch, capsys):
    """The folder of drawn cells with a config of init, and what that printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('xcit_mm.engine.pace.measure_pace', lambda *_: Pace(1.0, 0.1, 2.0))
    write_cells(tmp_path / 'cells')
    assert call('init', 'detection', '--data', 'cells', '--scratch', '--classes', 'cell') == 0
    return capsys.readouterr().out


def test_init_writes_and_explains_a_config_that_fits(cells, capsys):
    assert 'one mask file per object' in cells and 'are smaller than a patch of 8' in cells
    content = [read_coco(f'cells/coco/{split}.json') for split in ('train', 'val')]
    counts = [[a['image_id'] for a in part['annotations']].count(i['id'])
              for part in content for i in part['images']]  # fmt: skip
    cfg = load_config('cells.py')
    assert f'at most {max(counts)}' in cells and f'up to {max(counts)} objects' in cells
    limit = cfg.model.test_cfg.rcnn.max_per_img
    assert limit >= max(counts) > 100 and f'{limit} detections' in cells
    assert cfg.model.backbone.patch_size == 8 and cfg.model.rpn_head.anchor_generator.scales[0] < 8
    # What check prints of the same config.
    assert call('check', 'cells.py') == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in cells.splitlines() if line.startswith('anchors ')]
    assert row in printed and not any(kind in printed for kind in MISFITS)
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert len(dataset[0]['data_samples'].gt_instances) > 0


def test_check_warns_of_a_config_that_cannot_reach_the_objects(cells, capsys):
    settings = ['model.rpn_head.anchor_generator.scales=[16]', 'model.test_cfg.rcnn.max_per_img=50']
    name = next(
        key for key in ('scale', 'scale_factor') if key in resizing(load_config('cells.py'))
    )
    value = '0.3' if name == 'scale_factor' else '(64,64)'
    settings.append(f'test_dataloader.dataset.pipeline.1.{name}={value}')
    settings += ['model.type=MaskRCNN', 'model.test_cfg.windows.size=64']
    settings.append('model.test_cfg.windows.overlap=16')
    assert call('check', 'cells.py', '--json', 'report.json', '--cfg-options', *settings) == 0
    found = {p['problem'] for p in json.loads(Path('report.json').read_text())['problems']}
    assert found >= MISFITS.keys()
    assert '--cfg-options model.test_cfg.rcnn.max_per_img=' in capsys.readouterr().out


def test_large_images_of_12_bits_get_their_range_and_windows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_cells(tmp_path / 'cells', sizes=[(400, 380, 40)] * 4)
    for path in (tmp_path / 'cells').glob('*/images/*.png'):
        cv2.imwrite(str(path), cv2.imread(str(path)).astype(np.uint16) * 16)
    assert call('init', 'detection', '--data', 'cells', '--scratch', '--classes', 'cell') == 0
    printed = capsys.readouterr().out
    assert 'their values fit in 12 bits' in printed
    cfg = load_config('cells.py')
    # Crops and windows are one setting.
    first, crop = [s for s in cfg.train_dataloader.dataset.pipeline if s.type == 'RandomCrop']
    side = cfg.model.test_cfg.windows.size
    assert crop.crop_size == (side, side) == (cfg.window, cfg.window)
    # The part that is resized is no smaller than a crop afterwards.
    assert min(first.crop_size) * min(cfg.train_scales) >= side > 0.75 * min(first.crop_size)
    assert f'in windows of {side} x {side}, trained on crops of {side} x {side}' in printed
    assert bit_depth(cfg) == 12
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    expected = cv2.imread(dataset.get_data_info(0)['img_path'], cv2.IMREAD_UNCHANGED)
    # 16 times a value of 8 bits, in parts of 4095 instead of 4080: at most one less.
    difference = expected // 16 - dataset[0]['inputs'].permute(1, 2, 0).numpy()
    assert difference.min() >= 0 and difference.max() <= 1
    shrink(cfg.model)
    predictor = load_predictor(cfg, None, 'cpu', allow_partial=True)
    metadata = describe(cfg, predictor.model, Options(), '', 'random')
    assert predictor.bit_depth == metadata.bit_depth == 12
    assert metadata.windows['size'] == predictor.model.windows['size'] == side
