"""What a detector gets wrong: its confusion matrix, false positives and missed objects."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCO, COCOeval
from pycocotools import mask as mask_api

from .coco_metric import with_usable_mask

# What overlaps an object of its class by less has nothing to do with it.
NEAR_IOU = 0.1


@dataclass
class DetectionError:
    """A detection without an object, or an object without a detection.

    Args:
        annotation (dict): COCO's entry of the detection or the object.
        reason (str): What is wrong.
    """

    annotation: dict[str, Any]
    reason: str


@dataclass
class DetectionErrors:
    """All errors of a detector on a dataset.

    Args:
        matrix (np.ndarray): Objects by class in the ground truth (rows) and in the prediction
            (columns), in the order of the evaluation's ``catIds``. The last row counts detections
            without an object, the last column objects without a detection.
        false_positives (list[DetectionError]): Detections of the last row and of wrong classes,
            the highest score first.
        misses (list[DetectionError]): Objects of the last column and of wrong classes, the largest
            first.
    """

    matrix: np.ndarray
    false_positives: list[DetectionError]
    misses: list[DetectionError]


def find_errors(
    run: COCOeval, score_thr: float = 0.3, iou_thr: float = 0.5, max_dets: int = 100
) -> DetectionErrors:
    """Match detections with objects, one to one.

    Detections and objects of the same class are matched as COCO does, so that the diagonal holds
    the true positives of AP. What is left is matched across classes: the highest score first, each
    detection with the object that it overlaps most. As in COCO, detections of a class in a crowd
    of that class do not count, and crowds need not be found.

    Args:
        run (COCOeval): An evaluation of boxes or masks, after ``evaluate()``.
        score_thr (float): Detections with lower scores are left out. Defaults to 0.3, as in
            mmdet's confusion matrix.
        iou_thr (float): IoU of a match; one of ``run.params.iouThrs``. Defaults to 0.5.
        max_dets (int): How many detections per image and class count. Defaults to 100.
    """
    index = {category: i for i, category in enumerate(run.params.catIds)}
    threshold = int(np.flatnonzero(np.isclose(run.params.iouThrs, iou_thr))[0])
    matrix = np.zeros((len(index) + 1, len(index) + 1), int)
    extra, missed = defaultdict(list), defaultdict(list)  # by image
    for entry in run.evalImgs:
        if entry is None or entry['aRng'] != run.params.areaRng[0]:
            continue
        own, found = index[entry['category_id']], set()
        detections = zip(
            entry['dtIds'],
            entry['dtScores'],
            entry['dtMatches'][threshold],
            entry['dtIgnore'][threshold],
            strict=True,
        )
        for detection, score, match, ignored in list(detections)[:max_dets]:
            if score < score_thr or ignored:
                continue
            if match:
                matrix[own, own] += 1
                found.add(int(match))
            else:
                extra[entry['image_id']].append(run.cocoDt.anns[detection])
        for truth, ignored in zip(entry['gtIds'], entry['gtIgnore'], strict=True):
            if not ignored and truth not in found:
                missed[entry['image_id']].append(run.cocoGt.anns[truth])
    errors = DetectionErrors(matrix, [], [])
    for image in extra.keys() | missed.keys():
        _match_across_classes(run, errors, index, extra[image], missed[image], iou_thr)
    errors.false_positives.sort(key=lambda error: -error.annotation['score'])
    errors.misses.sort(key=lambda error: -error.annotation['area'])
    return errors


def _match_across_classes(
    run: COCOeval,
    errors: DetectionErrors,
    index: dict[int, int],
    extra: list[dict[str, Any]],
    missed: list[dict[str, Any]],
    iou_thr: float,
) -> None:
    """Add to ``errors`` what is left of one image."""
    names = {category: run.cocoGt.cats[category]['name'] for category in index}
    extra = sorted(extra, key=lambda detection: -detection['score'])
    overlaps = _overlaps(run, extra, missed)
    free = np.ones(len(missed), bool)
    for detection, overlap in zip(extra, overlaps, strict=True):
        column, name = index[detection['category_id']], names[detection['category_id']]
        candidates = np.where(free, overlap, 0)
        if not len(missed) or candidates.max() < iou_thr:
            errors.matrix[-1, column] += 1
            errors.false_positives.append(
                DetectionError(detection, _explain_extra(run, detection, iou_thr))
            )
            continue
        best = int(candidates.argmax())
        free[best] = False
        truth = missed[best]
        errors.matrix[index[truth['category_id']], column] += 1
        reason = f'wrong class: a {names[truth["category_id"]]}'
        errors.false_positives.append(DetectionError(detection, reason))
        errors.misses.append(DetectionError(truth, f'wrong class: found as {name}'))
    for i in np.flatnonzero(free):
        errors.matrix[index[missed[i]['category_id']], -1] += 1
        overlap = overlaps[:, i].max(initial=0)
        near = f'nearest false positive: IoU {overlap:.2f}'
        reason = near if overlap >= NEAR_IOU else 'not found'
        errors.misses.append(DetectionError(missed[i], reason))


def _explain_extra(run: COCOeval, detection: dict[str, Any], iou_thr: float) -> str:
    """Say what a detection without an object has to do with the objects of its class."""
    truths = [
        truth
        for truth in run.cocoGt.imgToAnns[detection['image_id']]
        if truth['category_id'] == detection['category_id'] and not truth.get('iscrowd')
    ]
    best = float(_overlaps(run, [detection], truths).max(initial=0))
    if best >= iou_thr:
        return f'duplicate: IoU {best:.2f} with an object that is taken'
    return f'poor overlap: IoU {best:.2f}' if best >= NEAR_IOU else 'background'


def _overlaps(
    run: COCOeval, detections: list[dict[str, Any]], truths: list[dict[str, Any]]
) -> np.ndarray:
    """Return the IoU of boxes or masks, by detection and object; no object is a crowd."""
    if not detections or not truths:
        return np.zeros((len(detections), len(truths)))
    kind = run.params.iouType
    found = [_region(run.cocoDt, one, kind) for one in detections]
    given = [_region(run.cocoGt, one, kind) for one in truths]
    return np.asarray(mask_api.iou(found, given, [0] * len(given)))


def _region(coco: COCO, annotation: dict[str, Any], kind: str) -> Any:
    return annotation['bbox'] if kind == 'bbox' else coco.annToRLE(with_usable_mask(annotation))
