"""Checks label PNGs of semantic segmentation, as the pipeline reads them."""

import os
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from .problems import Problem

# Pillow's modes with one channel of at most 8 bits. mmseg converts any other mode to that.
ONE_BYTE_MODES = ('1', 'L', 'P')


class Labels(NamedTuple):
    """What the labels of a data set may be.

    Args:
        classes (int): The number of its classes.
        ignored (int): The label that is ignored.
        reduced (bool): Whether 0 is ignored and classes start at 1.
    """

    classes: int
    ignored: int
    reduced: bool

    @classmethod
    def of(cls, dataset: Any) -> 'Labels':
        classes = len(dataset.metainfo['classes'])
        return cls(classes, dataset.ignore_index, dataset.reduce_zero_label)


def check_label(
    info: dict[str, Any], allowed: Labels, image_size: tuple[int, int]
) -> list[Problem]:
    """Find problems in the labels of an image.

    Args:
        info (dict): An entry of the data set's ``load_data_list``.
        allowed (Labels): What they may be.
        image_size (tuple[int, int]): Height and width of the decoded image.
    """
    from mmseg.datasets.transforms import LoadAnnotations

    path = info['seg_map_path']
    if not os.path.isfile(path):
        return [Problem('label: missing', path)]
    if 1 in image_size:
        return [Problem('label: unreadable', path, 'mmseg cannot read a single row or column')]
    try:
        labels = LoadAnnotations()({**info, 'seg_fields': []})['gt_seg_map']
    except Exception as error:  # a damaged file can raise anything
        return [Problem('label: unreadable', path, str(error))]
    problem = wrong_labels(labels, path, allowed, image_size)
    return [problem] if problem else []


def wrong_labels(
    labels: np.ndarray, path: str, allowed: Labels, image_size: tuple[int, int]
) -> Problem | None:
    """The problem of labels that were loaded from a file, if there is one."""
    with Image.open(path) as image:
        mode = image.mode
        largest = np.asarray(image).max() if mode.startswith(('I', 'F')) else None
    if labels.ndim != 2 or (mode not in ONE_BYTE_MODES and largest is None):
        return Problem('label: colours', path, f'mode {mode}, not one channel with class numbers')
    if labels.shape != tuple(image_size):
        (height, width), (image_height, image_width) = labels.shape, image_size
        detail = f'{width} x {height} pixels; its image has {image_width} x {image_height}'
        return Problem('label: other size', path, detail)
    if largest is not None and largest > 255:
        detail = f'up to {largest}, but mmseg keeps only the last 8 bits'
        return Problem('label: out of range', path, detail)
    top = int(labels[labels != allowed.ignored].max(initial=0))
    if top >= allowed.classes:
        reduced = ' after reduce_zero_label' if allowed.reduced else ''
        detail = f'up to {top}{reduced}; the classes are 0 to {allowed.classes - 1}'
        return Problem('label: out of range', path, detail)
    return None
