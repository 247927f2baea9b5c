"""Checks label images of semantic segmentation, as the pipeline reads them."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from xcit_mm_runtime.text import join_some

from ...configs import nested_dicts
from ..folders import count_file_types, label_endings, stem_of
from ..problems import Problem


class LabelRules(NamedTuple):
    """The labels that a dataset allows, as the pipeline returns them.

    Args:
        classes (int): The number of its classes, which are numbered from 0.
        ignored (int): The label that is ignored.
        reduced (bool): Whether files number the classes from 1, and 0 is ignored.
        values (tuple[int], optional): The value of each class in the files, if not its number.
    """

    classes: int
    ignored: int
    reduced: bool
    values: tuple[int, ...] | None = None

    @classmethod
    def of(cls, dataset: Any) -> 'LabelRules':
        classes = len(dataset.metainfo['classes'])
        values = getattr(dataset, 'values', None)
        return cls(classes, dataset.ignore_index, dataset.reduce_zero_label, values)


def check_label(
    info: dict[str, Any], rules: LabelRules, image_size: tuple[int, int], used: np.ndarray
) -> list[Problem]:
    """Find problems in the labels of an image.

    Args:
        info (dict): An entry of the dataset's ``load_data_list``.
        rules (LabelRules): What they may be.
        image_size (tuple[int, int]): Height and width of the decoded image.
        used (np.ndarray): Set to true at the values of the labels.
    """
    from mmseg.datasets.transforms import LoadAnnotations

    path = info['seg_map_path']
    if not os.path.isfile(path):
        return [Problem('label: missing', path)]
    try:
        labels = LoadAnnotations()({**info, 'seg_fields': []})['gt_seg_map']
    except Exception as error:  # a damaged file can raise anything
        return [Problem('label: unreadable', path, str(error))]
    used[labels] = True
    problem = check_loaded_label(labels, path, rules, image_size)
    return [problem] if problem else []


def check_loaded_label(
    labels: np.ndarray, path: str, rules: LabelRules, image_size: tuple[int, int]
) -> Problem | None:
    """Return the problem of labels that a pipeline loaded, if there is one.

    Args:
        labels (np.ndarray): The labels, of 8 bits.
        path (str): Their file.
        rules (LabelRules): What they may be.
        image_size (tuple[int, int]): Height and width of the image.
    """
    if labels.ndim < 2:
        return Problem('label: unreadable', path, 'mmseg cannot read a single row or column')
    if labels.ndim > 2:
        detail = f'{labels.shape[2]} channels, not one with class numbers'
        return Problem('label: colors', path, detail)
    if labels.shape != tuple(image_size):
        (height, width), (image_height, image_width) = labels.shape, image_size
        detail = f'{width} x {height} pixels; its image has {image_width} x {image_height}'
        return Problem('label: other size', path, detail)
    if os.path.isfile(path):
        with Image.open(path) as image:
            largest = np.asarray(image).max() if image.mode.startswith(('I', 'F')) else 0
        if largest > 255:
            detail = f'up to {largest}, but mmseg keeps only the last 8 bits'
            return Problem('label: out of range', path, detail)
    unknown = np.unique(labels[(labels >= rules.classes) & (labels != rules.ignored)])
    return (
        Problem('label: out of range', path, _describe_unknown(unknown, rules))
        if len(unknown)
        else None
    )


def _describe_unknown(values: np.ndarray, rules: LabelRules) -> str:
    if rules.values is not None:
        return (
            f'the file has other values than {join_some(rules.values, 8)}, which are those of the '
            'classes; to ignore a value, list it in void of LabelFolder'
        )
    first = int(rules.reduced)
    stored = [value + first for value in values.tolist()]
    zero = '' if rules.reduced else 'if 0 means unlabeled, set reduce_zero_label=True; '
    return (
        f'the file has {join_some(stored, 8)}; the config names {rules.classes} classes, {first} '
        f'to {first + rules.classes - 1}; {zero}to ignore a value, list it in void of LabelFolder'
    )


def check_reduce_zero_label(dataset: Any, pipeline: Any) -> Problem | None:
    """Return the problem that a pipeline counts classes from another number than its dataset.

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


def check_any_label(dataset: Any, infos: list[dict]) -> Problem | None:
    """Return the problem of a dataset if none of its images has a label.

    Args:
        dataset (BaseSegDataset): The dataset.
        infos (list[dict]): The entries of its ``load_data_list``.
    """
    folder = dataset.data_prefix.get('seg_map_path')
    # Folders elsewhere than on this machine's disk are not looked into.
    if not folder or not os.path.isdir(folder):
        return None
    if any(os.path.isfile(info['seg_map_path']) for info in infos):
        return None
    image_folder = dataset.data_prefix.get('img_path') or ''
    images = [Path(os.path.relpath(info['img_path'], image_folder)).as_posix() for info in infos]
    stems = [stem_of(name, dataset.img_suffix) or name for name in images]
    labels = (path.relative_to(folder).as_posix() for path in Path(folder).rglob('*.*'))
    detail = (
        f'no label has the name of an image and ends in {join_suffixes(dataset.seg_map_suffix)}; '
    )
    if endings := label_endings(stems, labels):
        detail += f'the labels there end in {join_suffixes(endings[:3])}. '
        detail += f'Set seg_map_suffix={endings[0]!r}'
    else:
        detail += (
            f'the folder has {count_file_types(Path(folder))}, and none has the name of an image'
        )
    return Problem('dataset: no labels', str(folder), detail)


def join_suffixes(suffixes: str | tuple[str, ...] | list[str]) -> str:
    """Return suffixes as words of a message."""
    return suffixes if isinstance(suffixes, str) else ' or '.join(suffixes)


def find_unused_classes(dataset: Any, used: np.ndarray) -> list[Problem]:
    """Find classes that no label has, unless the classes are those of a public dataset.

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


def orphan_labels(dataset: Any, infos: list[dict]) -> list[Problem]:
    """Find labels without an image. A list of names may leave out some on purpose.

    Args:
        dataset (BaseSegDataset): The dataset.
        infos (list[dict]): The entries of its ``load_data_list``.
    """
    folder, suffix = dataset.data_prefix.get('seg_map_path'), dataset.seg_map_suffix
    if not folder or dataset.ann_file:
        return []
    suffixes = tuple(s.lower() for s in ([suffix] if isinstance(suffix, str) else suffix))
    used = {Path(info[key]) for info in infos for key in ('img_path', 'seg_map_path')}
    there = [path for path in Path(folder).rglob('*') if path.name.lower().endswith(suffixes)]
    return [Problem('label: without image', str(p)) for p in sorted(there) if p not in used]
