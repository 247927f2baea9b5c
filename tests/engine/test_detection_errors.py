"""The confusion matrix by hand, and the curves of a report against COCO's numbers."""

import contextlib
import io

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm.engine.detection_errors import find_errors
from xcit_mm.engine.report import (
    ErrorPainter,
    overlaps,
    plot_confusion,
    plot_precision,
    window,
)

CAT, DOG, BIRD = 3, 7, 9  # ids of categories are not indices
NAMES = {CAT: 'cat', DOG: 'dog', BIRD: 'bird'}
PLACE, ELSEWHERE, LARGE = (10, 10, 40, 40), (60, 60, 20, 20), (0, 0, 100, 100)


def evaluate(images, kind='bbox'):
    """An evaluation of images, each a list of objects and a list of detections.

    An object is a class and a box, and 1 for a crowd; a detection is a class, a box and a score.
    """
    truths, found = [], []
    for image, (objects, detections) in enumerate(images):
        for name, box, *crowd in objects:
            truths.append({'image_id': image, 'category_id': name, 'iscrowd': int(bool(crowd))})
            truths[-1] |= {'id': len(truths), **shape(box)}
        for name, box, score in detections:
            found.append({'image_id': image, 'category_id': name, 'score': score, **shape(box)})
            if kind == 'segm':
                del found[-1]['bbox']
    truth = COCO()
    truth.dataset = {
        'images': [{'id': i, 'width': 100, 'height': 100} for i in range(len(images))],
        'annotations': truths,
        'categories': [{'id': i, 'name': name} for i, name in NAMES.items()],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        if kind == 'segm':
            for one in found:
                one['segmentation'] = truth.annToRLE(one)
        run = COCOeval(truth, truth.loadRes(found), kind)
        run.evaluate()
        run.accumulate()
    return run


def shape(box):
    x, y, width, height = box
    corners = [x, y, x + width, y, x + width, y + height, x, y + height]
    return {'bbox': list(box), 'area': width * height, 'segmentation': [corners]}


def reasons(errors):
    return [error.reason for error in errors]


# What is there, what is found -> entries of the matrix, reasons of false positives and misses.
CASES = {
    'found': ([(CAT, PLACE)], [(CAT, PLACE, 0.9)], {(CAT, CAT): 1}, [], []),
    'found twice': (
        [(CAT, PLACE)], [(CAT, PLACE, 0.9), (CAT, PLACE, 0.8)],
        {(CAT, CAT): 1, (0, CAT): 1}, ['duplicate: IoU 1.00 with an object that is taken'], [],
    ),
    'wrong class': (
        [(DOG, PLACE)], [(CAT, PLACE, 0.9)],
        {(DOG, CAT): 1}, ['wrong class: a dog'], ['wrong class: found as cat'],
    ),
    'two wrong classes, one object': (
        [(DOG, PLACE)], [(CAT, PLACE, 0.6), (BIRD, PLACE, 0.9)],
        {(DOG, BIRD): 1, (0, CAT): 1}, ['wrong class: a dog', 'background'],
        ['wrong class: found as bird'],
    ),
    'the right class first, though its score is lower': (
        [(DOG, PLACE)], [(CAT, PLACE, 0.9), (DOG, PLACE, 0.5)],
        {(DOG, DOG): 1, (0, CAT): 1}, ['background'], [],
    ),
    'two objects in one place, as mmdet counts them four times': (
        [(CAT, PLACE), (DOG, PLACE)], [(CAT, PLACE, 0.9), (DOG, PLACE, 0.8)],
        {(CAT, CAT): 1, (DOG, DOG): 1}, [], [],
    ),
    'in a crowd of its class': ([(CAT, LARGE, 1)], [(CAT, PLACE, 0.9)], {}, [], []),
    'in a crowd of another class': (
        [(CAT, LARGE, 1)], [(DOG, PLACE, 0.9)], {(0, DOG): 1}, ['background'], [],
    ),
    'an object in a crowd': (
        [(CAT, LARGE, 1), (CAT, PLACE)], [(CAT, PLACE, 0.9), (CAT, ELSEWHERE, 0.8)],
        {(CAT, CAT): 1}, [], [],
    ),
    'no object': ([], [(DOG, PLACE, 0.4)], {(0, DOG): 1}, ['background'], []),
    'no detection': ([(CAT, PLACE)], [], {(CAT, 0): 1}, [], ['not found']),
    'nothing': ([], [], {}, [], []),
    'a low score': ([(CAT, PLACE)], [(CAT, PLACE, 0.29)], {(CAT, 0): 1}, [], ['not found']),
    'the limit itself': ([(CAT, PLACE)], [(CAT, PLACE, 0.3)], {(CAT, CAT): 1}, [], []),
    'a poor box': (
        [(CAT, PLACE)], [(CAT, (10, 10, 40, 16), 0.9)], {(CAT, 0): 1, (0, CAT): 1},
        ['poor overlap: IoU 0.40'], ['nearest false positive: IoU 0.40'],
    ),
}  # fmt: skip


def expected_matrix(entries):
    index = {CAT: 0, DOG: 1, BIRD: 2, 0: 3}
    matrix = np.zeros((4, 4), int)
    for (truth, found), count in entries.items():
        matrix[index[truth], index[found]] = count
    return matrix


# COCO cannot load an empty list of detections: one more image has one, below the threshold.
OTHER = ([], [(BIRD, PLACE, 0.01)])


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
@pytest.mark.parametrize('case', CASES)
def test_confusion_matrix_by_hand(case, kind):
    objects, detections, entries, false_positives, misses = CASES[case]
    errors = find_errors(evaluate([(objects, detections), OTHER], kind))
    np.testing.assert_array_equal(errors.matrix, expected_matrix(entries))
    assert reasons(errors.false_positives) == false_positives
    assert reasons(errors.misses) == misses


def test_images_do_not_mix_and_the_worst_errors_come_first():
    cases = list(CASES.values())
    errors = find_errors(evaluate([case[:2] for case in cases]))
    together = sum(expected_matrix(case[2]) for case in cases)
    np.testing.assert_array_equal(errors.matrix, together)
    scores = [error.annotation['score'] for error in errors.false_positives]
    assert scores == sorted(scores, reverse=True) and len(scores) == sum(len(c[3]) for c in cases)
    objects = [((CAT, ELSEWHERE),), ((CAT, PLACE),)]
    errors = find_errors(evaluate([(found, []) for found in objects] + [OTHER]))
    assert [error.annotation['bbox'] for error in errors.misses] == [list(PLACE), list(ELSEWHERE)]


def random_images(count=40):
    random = np.random.default_rng(0)
    names = list(NAMES)

    def box():
        return (*random.integers(0, 60, 2).tolist(), *random.integers(5, 40, 2).tolist())

    images = []
    for _ in range(count):
        objects = [(names[random.integers(3)], box()) for _ in range(random.integers(4))]
        objects += [(names[random.integers(3)], box(), 1)] * int(random.random() < 0.3)
        detections = [(names[random.integers(3)], box(), random.random()) for _ in range(3)]
        for name, place, *_ in objects:
            name = name if random.random() < 0.6 else names[random.integers(3)]
            detections.append((name, place, random.random()))
        images.append((objects, detections))
    return images


@pytest.mark.parametrize('max_dets', [1, 100])
def test_the_matrix_counts_what_coco_counts(max_dets):
    run = evaluate(random_images())
    errors = find_errors(run, score_thr=0.0, max_dets=max_dets)
    objects = np.array([
        sum(a['category_id'] == c and not a['iscrowd'] for a in run.cocoGt.anns.values())
        for c in NAMES
    ])  # fmt: skip
    np.testing.assert_array_equal(errors.matrix[:-1].sum(1), objects)
    recall = run.eval['recall'][0, :, 0, run.params.maxDets.index(max_dets)]
    np.testing.assert_allclose(errors.matrix.diagonal()[:-1], recall * objects)
    assert errors.matrix[:-1, :-1].sum() > errors.matrix.diagonal().sum() > 0
    wrong = errors.matrix.sum() - errors.matrix.diagonal().sum()
    assert wrong == len(errors.false_positives) + errors.matrix[:, -1].sum()


def test_curves_are_cocos_and_those_by_hand():
    # Of two cats, the best and the third best detection are right.
    two = [(CAT, PLACE), (CAT, ELSEWHERE)]
    found = [(CAT, PLACE, 0.9), (CAT, (0, 80, 9, 9), 0.8), (CAT, ELSEWHERE, 0.7)]
    run = evaluate([(two, found), ([(DOG, PLACE)], [(DOG, PLACE, 0.5)])])
    precision = run.eval['precision'][..., -1]
    thresholds, names = run.params.iouThrs, ['cat', 'dog', 'costs $1 or $2']
    left, right = plot_precision(precision, thresholds, names).axes
    assert [line.get_label() for line in right.lines] == ['cat, AP 0.835', 'dog, AP 1.000']
    x, y = right.lines[0].get_data()
    np.testing.assert_allclose(y, np.where(x <= 0.5, 1, 2 / 3))
    assert len(left.lines) == len(thresholds) + 1
    np.testing.assert_allclose(left.lines[-1].get_ydata(), precision[:, :, :2, 0].mean((0, 2)))
    assert 'AP 0.917' in left.lines[-1].get_label()


def test_the_drawn_matrix_leaves_out_classes_that_do_not_occur():
    matrix = expected_matrix({(CAT, CAT): 3, (CAT, 0): 1})
    axes = plot_confusion(matrix, ['a', 'b', 'c', 'd'], 'objects').axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ['a', 'd']
    assert {text.get_text() for text in axes.texts} == {'3', '1'}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 0]])


@pytest.mark.parametrize(
    'box, expected',
    [
        ((40, 40, 30, 10), (25, 15, 85, 75)),
        ((0, 0, 4, 4), (0, 0, 26, 26)),
        ((90, 50, 30, 40), (65, 30, 100, 80)),
    ],
)
def test_the_part_of_a_photo_around_a_box(box, expected):
    assert window(box, (80, 100)) == expected


@pytest.mark.parametrize(
    'box, expected', [((0, 0, 11, 11), True), ((0, 0, 10, 30), False), ((12, 20, 3, 3), False)]
)
def test_boxes_outside_a_picture_are_not_drawn(box, expected):
    assert overlaps(box, (10, 10, 20, 20)) == expected


class OneImage:
    """A dataset."""

    metainfo = dict(classes=tuple(NAMES.values()))

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1

    def get_data_info(self, index):
        return dict(img_id=0, img_path=str(self.path))


def test_objects_that_cannot_be_drawn_are_named(tmp_path):
    """Boxes of an image that was made smaller, and masks without a polygon."""
    outside = (300, 20, 40, 40)
    run = evaluate([([(CAT, outside), (DOG, ELSEWHERE)], [(DOG, PLACE, 0.9)])], 'segm')
    run.cocoGt.anns[2]['segmentation'] = []
    path = tmp_path / 'image.png'
    cv2.imwrite(str(path), np.zeros((100, 100, 3), np.uint8))
    paint = ErrorPainter(run, OneImage(path), None, 0.3)
    errors = find_errors(run)
    largest, _ = errors.misses
    text = paint(largest, is_miss=True)
    assert 'outside its image' in text and 'cat, not found' in text and '<img' not in text
    assert '<img' in paint(errors.false_positives[0], is_miss=False)
