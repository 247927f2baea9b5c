"""Detectors that slide windows over images: predictions, metrics through mmengine's own loop."""

import json
import pickle

import cv2
import numpy as np
import pytest
import torch
from mmdet.models.detectors import MaskRCNN
from mmdet.structures import DetDataSample
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from mmengine.structures import InstanceData

from xcit_mm.configs import window_settings
from xcit_mm.engine.testing import set_windows
from xcit_mm.errors import UserError
from xcit_mm.models import sliding_windows
from xcit_mm.models.sliding_windows import SlidingWindows
from xcit_mm_runtime.windows import WindowDetections, cut_windows, merge_windows

from ..tiny import build, forget_runs, recipe

# Windows are padded: 32 does not divide them.
WINDOW, OVERLAP = 90, 32


def loaded(image, scale=1.0):
    """An image as a data loader gives it."""
    resized = cv2.resize(image, None, fx=scale, fy=scale) if scale != 1 else image
    meta = dict(img_shape=resized.shape[:2], ori_shape=image.shape[:2], scale_factor=(scale, scale))
    pixels = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))
    return {'inputs': [pixels], 'data_samples': [DetDataSample(metainfo=meta)]}


@pytest.fixture(scope='module')
def models():
    """A Mask R-CNN and the same with windows."""
    torch.manual_seed(0)
    cfg = recipe('mask_rcnn', 16)
    plain = build(cfg)
    torch.nn.init.constant_(plain.roi_head.mask_head.conv_logits.bias, 1.0)  # some masks
    set_windows(cfg, WINDOW, OVERLAP)
    sliding = build(cfg)
    sliding.load_state_dict(plain.state_dict())
    return plain, sliding


@pytest.fixture(scope='module')
def photo():
    blocks = np.random.default_rng(0).integers(0, 256, (17, 23, 3), np.uint8)
    return cv2.resize(blocks, (230, 170), interpolation=cv2.INTER_CUBIC)


@torch.no_grad()
def test_each_window_is_an_image_of_its_own(models, photo):
    plain, sliding = models
    assert isinstance(sliding, MaskRCNN) and not isinstance(plain, SlidingWindows)
    parts, found = cut_windows(photo.shape[:2], WINDOW, OVERLAP), []
    for part in parts:
        (sample,) = plain.test_step(loaded(np.ascontiguousarray(photo[part.slices])))
        one = sample.pred_instances.numpy()
        found.append(
            WindowDetections.of_window(part, one.bboxes, one.scores, one.labels, one.masks)
        )
    limit = plain.test_cfg.rcnn.max_per_img
    merged = merge_windows(parts, found, photo.shape[:2], limit)
    boxes, masks = merged.rescale(photo.shape[:2])
    (sample,) = sliding.test_step(loaded(photo))
    given = sample.pred_instances
    assert len(parts) > 4 and len(given) == limit
    # The same operations on the same numbers.
    assert torch.equal(given.bboxes, torch.from_numpy(boxes))
    assert torch.equal(given.scores, torch.from_numpy(merged.scores))
    assert torch.equal(given.labels, torch.from_numpy(merged.labels))
    assert torch.equal(given.masks, torch.from_numpy(masks)) and given.masks.any()


@torch.no_grad()
def test_small_images_are_seen_whole(models, photo):
    expected, given = (
        model.test_step(loaded(photo[:WINDOW, :WINDOW], 0.9))[0].pred_instances for model in models
    )
    assert torch.equal(expected.bboxes, given.bboxes) and torch.equal(expected.masks, given.masks)


@torch.no_grad()
def test_boxes_and_masks_are_in_pixels_of_the_file(models, photo):
    """Seen at twice their size, objects are where they are in an image of twice the size."""
    _, sliding = models
    photo = photo[:72, :80]
    large = cv2.resize(photo, None, fx=2, fy=2)
    (expected,) = sliding.test_step(loaded(large))
    (given,) = sliding.test_step(loaded(photo, 2.0))
    expected, given = expected.pred_instances, given.pred_instances
    assert given.masks.shape[1:] == photo.shape[:2] and len(given) == len(expected)
    assert torch.equal(given.bboxes * 2, expected.bboxes)
    assert torch.equal(given.masks, expected.masks[:, 1::2, 1::2])


def test_bad_windows_are_refused():
    assert window_settings(None) is window_settings({'rcnn': {}}) is None
    windows = dict(size=64, overlap=16)
    assert window_settings(dict(windows=windows, max_per_img=-1)) == {**windows, 'limit': None}
    for bad in (64, dict(size=64), dict(size=64, overlap=64), dict(size=(64, 64), overlap=8)):
        with pytest.raises(UserError, match=r'dict\(size=..., overlap=...\), both in pixels'):
            window_settings(dict(windows=bad))
    cfg = recipe('mask_rcnn', 16)
    cfg.model.type = 'SOLO'
    with pytest.raises(UserError, match='--window: SOLO has no windows; ATSS'):
        set_windows(cfg, 64, 16)


def test_every_detector_is_registered_and_can_be_pickled():
    for name in sliding_windows.DETECTORS:
        kind = MODELS.get(f'Sliding{name}')
        assert issubclass(kind, SlidingWindows) and kind.__mro__[2].__name__ == name
        assert pickle.loads(pickle.dumps(kind)) is kind


def test_segmentors_have_the_windows_of_mmseg():
    cfg = recipe('sem_fpn', 16)
    set_windows(cfg, 64, 16)
    expected = dict(mode='slide', crop_size=(64, 64), stride=(48, 48))
    assert {key: cfg.model.test_cfg[key] for key in expected} == expected


class Blobs(MaskRCNN):
    """Finds white discs without training. It takes only images of the size of a window."""

    def predict(self, batch_inputs, batch_data_samples, rescale=True):
        for image, sample in zip(batch_inputs, batch_data_samples, strict=True):
            height, width = sample.img_shape[:2]
            assert max(height, width) <= WINDOW
            white = (image[0, :height, :width] > 0).numpy().astype(np.uint8)
            count, numbers, stats, _ = cv2.connectedComponentsWithStats(white, connectivity=4)
            x, y, w, h = stats[1:, :4].astype(np.float32).T
            sample.pred_instances = InstanceData(
                bboxes=torch.from_numpy(np.stack([x, y, x + w, y + h], 1)),
                scores=torch.full((count - 1,), 0.9),
                labels=torch.zeros(count - 1, dtype=torch.int64),
                masks=torch.from_numpy(numbers == np.arange(1, count)[:, None, None]),
            )
        return batch_data_samples


class SlidingBlobs(SlidingWindows, Blobs):
    pass


@pytest.fixture
def discs(tmp_path):
    """Images larger than windows, with discs as large as the overlap, and their annotations."""
    rng, images, annotations = np.random.default_rng(0), [], []
    for number in range(3):
        picture, taken = np.zeros((300, 250), np.uint8), np.zeros((300, 250), np.uint8)
        for _ in range(80):
            one, radius = np.zeros_like(picture), int(rng.integers(4, OVERLAP // 2 - 1))
            x, y = (int(v) for v in rng.integers(radius, (250 - radius, 300 - radius)))
            cv2.circle(one, (x, y), radius, 1, -1)
            if (taken & cv2.dilate(one, np.ones((5, 5), np.uint8))).any():
                continue
            taken |= one
            rows, columns = (np.flatnonzero(one.any(axis)) for axis in (1, 0))
            sides = len(columns), len(rows)
            contours, _ = cv2.findContours(one, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
            annotations.append(dict(
                id=len(annotations) + 1, image_id=number, category_id=1, iscrowd=0,
                bbox=[int(columns[0]), int(rows[0]), *sides], area=int(one.sum()),
                segmentation=[contours[0].ravel().tolist()],
            ))  # fmt: skip
        cv2.imwrite(str(tmp_path / f'{number}.png'), taken * 255)
        images.append(dict(id=number, file_name=f'{number}.png', height=300, width=250))
    content = dict(images=images, annotations=annotations, categories=[dict(id=1, name='disc')])
    (tmp_path / 'annotations.json').write_text(json.dumps(content))
    return tmp_path


def test_metrics_of_whole_images_through_mmengines_loop(discs):
    """As mmdet's tools/test.py runs it: the AP of images of which the model sees only windows."""
    for kind in (Blobs, SlidingBlobs):
        MODELS.register_module(module=kind, force=True)
    cfg = recipe('mask_rcnn', 16)
    cfg.model.update(type='SlidingBlobs')
    cfg.model.test_cfg.windows = dict(size=WINDOW, overlap=OVERLAP)
    cfg.model.test_cfg.rcnn.max_per_img = 100
    dataset = cfg.test_dataloader.dataset
    dataset.update(
        data_root=str(discs), ann_file='annotations.json', data_prefix=dict(img=''),
        metainfo=dict(classes=('disc',)),
    )  # fmt: skip
    dataset.pipeline[1] = dict(type='Resize', scale_factor=1.0, keep_ratio=True)
    cfg.test_evaluator.update(ann_file=str(discs / 'annotations.json'), metric=['bbox', 'segm'])
    cfg.work_dir, cfg.load_from, cfg.custom_hooks = str(discs / 'work'), None, []
    forget_runs()
    init_default_scope('mmdet')
    metrics = Runner.from_cfg(cfg).test()
    assert metrics['coco/bbox_mAP'] == 1.0
    # Polygons run through the centers of pixels, so that small masks lose half a pixel around.
    assert metrics['coco/segm_mAP_50'] == 1.0
