"""Checks label PNGs of semantic segmentation, as the pipeline reads them."""

import os
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ...configs import nested_dicts
from .problems import Problem

# Pillow's modes with one channel of at most 8 bits. mmseg converts any other mode to that.
ONE_BYTE_MODES = ('1', 'L', 'P')
VALUES_SHOWN = 8


class Labels(NamedTuple):
    """What the labels of a dataset may be.

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


def contradiction(dataset: Any, pipeline: Any) -> Problem | None:
    """The problem of a dataset whose pipeline counts classes from another number, if it does.

    Args:
        dataset (BaseDataset): The dataset. Those of detectors have no such setting.
        pipeline (list): Its pipeline in the config.
    """
    own = getattr(dataset, 'reduce_zero_label', None)
    for step in nested_dicts(pipeline):
        other = step.get('reduce_zero_label')
        if None not in (own, other) and own != other:
            detail = (
                f'the dataset has reduce_zero_label={own}, but its pipeline has dict(type='
                f"'{step.get('type')}', reduce_zero_label={other}). Remove reduce_zero_label from "
                'that line of the pipeline: without it, loading follows the dataset'
            )
            folder = dataset.data_prefix.get('seg_map_path') or dataset.ann_file
            return Problem('dataset: reduce_zero_label', str(folder), detail)
    return None


def never_used(dataset: Any, used: np.ndarray) -> list[Problem]:
    """The problem of classes that no label has, unless the classes are those of a public dataset.

    Args:
        dataset (BaseSegDataset): The dataset.
        used (np.ndarray): Whether each of 256 values was seen.
    """
    names = dataset.metainfo['classes']
    unused = [name for i, name in enumerate(names) if not used[i]]
    if not unused or dataset.METAINFO:
        return []
    folder = dataset.data_prefix.get('seg_map_path') or ''
    return [Problem('label: class never used', str(folder), f'no pixel has {", ".join(unused)}')]


def check_label(
    info: dict[str, Any], allowed: Labels, image_size: tuple[int, int], used: np.ndarray
) -> list[Problem]:
    """Find problems in the labels of an image.

    Args:
        info (dict): An entry of the dataset's ``load_data_list``.
        allowed (Labels): What they may be.
        image_size (tuple[int, int]): Height and width of the decoded image.
        used (np.ndarray): Set to true at the values of the labels.
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
    used[labels] = True
    return [problem] if problem else []


def wrong_labels(
    labels: np.ndarray, path: str, allowed: Labels, image_size: tuple[int, int]
) -> Problem | None:
    """The problem of labels that were loaded from a file, if there is one."""
    with Image.open(path) as image:
        mode = image.mode
        largest = np.asarray(image).max() if mode.startswith(('I', 'F')) else None
    if labels.ndim != 2 or (mode not in ONE_BYTE_MODES and largest is None):
        return Problem('label: colors', path, f'mode {mode}, not one channel with class numbers')
    if labels.shape != tuple(image_size):
        (height, width), (image_height, image_width) = labels.shape, image_size
        detail = f'{width} x {height} pixels; its image has {image_width} x {image_height}'
        return Problem('label: other size', path, detail)
    if largest is not None and largest > 255:
        detail = f'up to {largest}, but mmseg keeps only the last 8 bits'
        return Problem('label: out of range', path, detail)
    values = np.unique(labels[labels != allowed.ignored])
    unknown = values[values >= allowed.classes]
    return (
        Problem('label: out of range', path, _unknown(unknown, allowed)) if len(unknown) else None
    )


def _unknown(values: np.ndarray, allowed: Labels) -> str:
    first = int(allowed.reduced)
    numbers = [value + first for value in values.tolist()]
    stored = ', '.join(map(str, numbers))
    few = len(numbers) <= VALUES_SHOWN
    shown = stored if few else f'{len(numbers)} values from {numbers[0]} to {numbers[-1]}'
    detail = (
        f'the file has {shown}; the config names {allowed.classes} classes, {first} to '
        f'{first + allowed.classes - 1}'
    )
    if not few:
        return detail
    void = f"to ignore {stored}, use type='LabelFolder' with void=({stored},)"
    if values.tolist() == [allowed.classes] and not allowed.reduced:
        return f'{detail}. If 0 means unlabeled, set reduce_zero_label=True; {void}'
    return f'{detail}; {void}'
