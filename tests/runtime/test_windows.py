"""Sliding windows cover the image, and what they find is merged into the objects of the image."""

import itertools
import os
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import pytest
from pycocotools import mask as coco

from xcit_mm_runtime import rle
from xcit_mm_runtime.windows import (
    CroppedMask,
    Window,
    WindowDetections,
    cut_windows,
    merge_windows,
    window_starts,
)

DATA = Path(os.environ.get('XCIT_MM_DATA', 'no such folder'))
# Two windows with an overlap of 20 columns.
SIZE = (100, 180)
LEFT, RIGHT = cut_windows(SIZE, 100, 20)


def test_windows_cover_everything_and_end_at_the_border():
    for length, window, overlap in [(100, 30, 10), (30, 30, 10), (10, 30, 0), (91, 30, 0)]:
        begins = window_starts(length, window, overlap)
        assert begins[0] == 0 and begins[-1] == max(length - window, 0)
        assert all(b - a <= window - overlap for a, b in itertools.pairwise(begins))
    with pytest.raises(ValueError, match='overlap must be less'):
        window_starts(100, 30, 30)
    covered = np.zeros((90, 70), int)
    for part in cut_windows((90, 70), 40, 10):
        assert part.size == (40, 40)
        covered[part.slices] += 1
    assert covered.min() == 1


def found(*boxes):
    """What a window found, in pixels of the image: boxes, each with its score and its class."""
    rows = np.array(boxes, np.float32).reshape(-1, 6)
    return WindowDetections(rows[:, :4], rows[:, 4], rows[:, 5].astype(int), None)


@pytest.mark.parametrize('left, right, expected', [
    # An object that is larger than the overlap: both windows cut it off.
    ([(40, 10, 100, 50, 0.9, 1)], [(80, 10, 150, 50, 0.8, 1)], [(40, 10, 150, 50, 0.9, 1)]),
    # The right window shows it whole: its box counts, with the better score.
    ([(85, 10, 100, 50, 0.9, 1)], [(84, 11, 110, 49, 0.8, 1)], [(84, 11, 110, 49, 0.9, 1)]),
    # Both show it whole.
    ([(82, 10, 94, 30, 0.7, 1)], [(83, 10, 95, 30, 0.8, 1)], [(83, 10, 95, 30, 0.8, 1)]),
    # The left window sees a sliver of it, whose box is not precise.
    ([(96, 15, 100, 40, 0.4, 1)], [(93, 10, 150, 50, 0.8, 1)], [(93, 10, 150, 50, 0.8, 1)]),
    # A small object in front of a large one, which only the right window finds.
    ([(10, 10, 100, 90, 0.9, 1)], [(84, 40, 92, 48, 0.8, 1)],
     [(10, 10, 100, 90, 0.9, 1), (84, 40, 92, 48, 0.8, 1)]),
    # Another class.
    ([(82, 10, 94, 30, 0.7, 1)], [(82, 10, 94, 30, 0.8, 2)],
     [(82, 10, 94, 30, 0.8, 2), (82, 10, 94, 30, 0.7, 1)]),
    # Two of one window stay two.
    ([(82, 10, 94, 30, 0.7, 1), (83, 11, 94, 30, 0.6, 1)], [(82, 10, 94, 30, 0.8, 1)],
     [(82, 10, 94, 30, 0.8, 1), (83, 11, 94, 30, 0.6, 1)]),
    # Of two that the left window cuts off, the one that agrees better is the same object.
    ([(94, 20, 100, 30, 0.9, 1), (83, 10, 100, 50, 0.6, 1)], [(83, 10, 110, 50, 0.5, 1)],
     [(94, 20, 100, 30, 0.9, 1), (83, 10, 110, 50, 0.6, 1)]),
    # Neighbors on both sides of the overlap.
    ([(60, 10, 79, 50, 0.9, 1)], [(101, 10, 150, 50, 0.8, 1)],
     [(60, 10, 79, 50, 0.9, 1), (101, 10, 150, 50, 0.8, 1)]),
    ([], [], []),
])  # fmt: skip
def test_two_windows(left, right, expected):
    merged = merge_windows([LEFT, RIGHT], [found(*left), found(*right)], SIZE)
    want = found(*expected)
    assert merged.boxes.tolist() == want.boxes.tolist()
    assert merged.scores.tolist() == want.scores.tolist()
    assert merged.labels.tolist() == want.labels.tolist()


def test_a_long_object_goes_on_from_window_to_window():
    size = (100, 420)
    parts = cut_windows(size, 100, 20)
    seen = [found((max(p.left, 30), 40, min(p.right, 400), 60, 0.5 + 0.1 * i, 0))
            for i, p in enumerate(parts)]  # fmt: skip
    merged = merge_windows(parts, seen, size)
    assert len(parts) == 5 and merged.boxes.tolist() == [[30, 40, 400, 60]]
    whole = np.zeros(size, bool)
    whole[40:60, 30:400] = True
    for part, one in zip(parts, seen, strict=True):
        one.masks = [CroppedMask.crop(whole[part.slices], part.top, part.left)]
    (mask,) = merge_windows(parts, seen, size).rescale(size)[1]
    assert (mask == whole).all()
    assert merge_windows(parts, seen, size, limit=0).boxes.shape == (0, 4)


def test_masks_are_cropped_united_and_pasted():
    whole = np.random.default_rng(0).random((60, 50)) < 0.1
    parts = cut_windows(whole.shape, 30, 10)
    cropped = [CroppedMask.crop(whole[p.slices], p.top, p.left) for p in parts]
    united = CroppedMask.unite(cropped)
    canvas = np.zeros_like(whole)
    united.paste(canvas)
    assert (canvas == whole).all() and united.pixels.any(axis=1)[[0, -1]].all()
    # Windows of an image of twice the size: every second pixel.
    large = CroppedMask.crop(np.kron(whole, np.ones((2, 2), bool)))
    canvas = np.zeros_like(whole)
    large.paste(canvas, (2.0, 2.0))
    assert (canvas == whole).all()
    empty = CroppedMask.crop(np.zeros((5, 5), bool), 3, 3)
    assert not empty.pixels.size and CroppedMask.unite([empty, empty]) is empty
    assert CroppedMask.unite([empty, united]) is united


@pytest.mark.parametrize('top, left, shape', [
    (0, 0, (40, 30)), (5, 7, (12, 9)), (0, 7, (12, 9)), (28, 7, (12, 23)), (0, 3, (40, 5)),
    (39, 29, (1, 1)), (4, 4, (0, 0)),
])  # fmt: skip
@pytest.mark.parametrize('share', [0.5, 1.0])
def test_parts_of_masks_are_encoded_as_by_pycocotools(top, left, shape, share):
    part = np.random.default_rng(0).random(shape) < share
    whole = np.zeros((40, 30), np.uint8)
    CroppedMask(top, left, part).paste(canvas := whole.astype(bool))
    expected = coco.encode(np.asfortranarray(canvas.astype(np.uint8)))
    assert rle.encode_part(top, left, part, whole.shape) == {
        'size': [40, 30], 'counts': expected['counts'].decode(),
    }  # fmt: skip


def spots(image):
    """A detector that needs no training: the dark and the bright spots of a photograph."""
    gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(int)
    boxes, masks, labels = [], [], []
    for label, is_spot in enumerate((gray < 60, gray > 200)):
        count, numbers, stats, _ = cv2.connectedComponentsWithStats(is_spot.astype(np.uint8))
        for i in range(1, count):
            x, y, width, height, area = stats[i]
            if area >= 12:
                boxes.append((x, y, x + width, y + height))
                masks.append(numbers == i)
                labels.append(label)
    order = np.argsort([-mask.sum() for mask in masks], kind='stable')
    arrays = (
        np.array(boxes, np.float32).reshape(-1, 4),
        np.linspace(1, 0.1, len(boxes), dtype='f4'),
    )
    masks = np.array(masks).reshape(-1, *image.shape[:2])
    return arrays[0][order], arrays[1], np.array(labels, int)[order], masks[order]


@pytest.mark.parametrize('window, overlap', [(128, 32), (200, 64), (96, 48)])
def test_the_spots_of_a_photograph_are_the_same_with_and_without_windows(window, overlap):
    photo = cv2.imread(f'{matplotlib.get_data_path()}/sample_data/grace_hopper.jpg')
    size = photo.shape[:2]
    parts = cut_windows(size, window, overlap)
    views = [WindowDetections.of_window(part, *spots(photo[part.slices])) for part in parts]
    assert sum(len(view.scores) for view in views) > 100
    merged = merge_windows(parts, views, size)
    boxes, masks = merged.rescale(size)
    # Those that some window shows whole. In larger ones, windows see parts that are not connected.
    expected = [
        (label, mask) for box, _, label, mask in zip(*spots(photo), strict=True)
        if (box[2:] - box[:2]).max() < overlap - 4
    ]  # fmt: skip
    assert len(expected) > 50
    given = {
        (int(n), mask.tobytes()): box
        for n, mask, box in zip(merged.labels, masks, boxes, strict=True)
    }
    assert len(given) == len(boxes)  # nothing twice
    for label, mask in expected:
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        box = given[int(label), mask.tobytes()]
        assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def annotated(folder):
    """The objects of real photographs: size, and masks by class."""
    from mmdet.datasets.api_wrappers import COCO

    for file in sorted(folder.glob('annotations/instances_*.json')):
        content = COCO(str(file))
        for image in content.loadImgs(content.getImgIds()):
            ids = content.getAnnIds(image['id'], iscrowd=False)
            objects = content.loadAnns(ids)
            yield (
                (image['height'], image['width']),
                [(one['category_id'], content.annToMask(one).astype(bool)) for one in objects],
            )


@pytest.mark.skipif(not (DATA / 'tiny_coco').is_dir(), reason='XCIT_MM_DATA has no tiny_coco')
def test_the_objects_of_coco_survive_windows():
    """Each window gives what it shows of each object, its box off by a few percent."""
    rng = np.random.default_rng(0)
    window, overlap, total, right, extra = 192, 64, 0, 0, 0
    for size, objects in annotated(DATA / 'tiny_coco'):
        parts, views = cut_windows(size, window, overlap), []
        for part in parts:
            seen = [(label, mask[part.slices]) for label, mask in objects]
            seen = [(label, mask) for label, mask in seen if mask.sum() >= 16]
            boxes = [box_of(mask) for _, mask in seen]
            noise = [rng.normal(0, 0.02, 4) * np.tile(b[2:] - b[:2], 2) for b in boxes]
            boxes = np.array([np.clip(b + n, 0, np.tile(part.size[::-1], 2))
                              for b, n in zip(boxes, noise, strict=True)], np.float32)  # fmt: skip
            labels = np.array([label for label, _ in seen], int)
            masks = np.array([mask for _, mask in seen]).reshape(-1, *part.size)
            scores = rng.uniform(0.3, 1, len(seen)).astype(np.float32)
            views.append(
                WindowDetections.of_window(part, boxes.reshape(-1, 4), scores, labels, masks)
            )
        merged = merge_windows(parts, views, size)
        _, masks = merged.rescale(size)
        pairs = [(label, mask) for label, mask in objects if mask.sum() >= 64]
        total += len(pairs)
        for label, mask in pairs:
            ious = [(m & mask).sum() / (m | mask).sum() for m in masks[merged.labels == label]]
            right += max(ious, default=0) >= 0.75
        extra += len(merged.scores) - len(objects)
    # Objects that windows cut into parts which are not connected, and crowds, are what is left.
    assert total > 500 and right / total > 0.9 and extra / total < 0.1, (total, right, extra)


def box_of(mask):
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], float)


def test_a_window_with_a_margin_stays_inside():
    assert Window(0, 10, 5, 20).grown(3, (12, 40)) == Window(0, 12, 2, 23)
