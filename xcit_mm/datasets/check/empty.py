"""Explains why a dataset has no images or no labels."""

import os
from pathlib import Path
from typing import Any

from ..folders import contents_of, label_endings, stem_of
from .problems import Problem


def empty(dataset: Any, found: int = 0) -> Problem:
    """The problem of a dataset that has no images.

    Args:
        dataset (BaseDataset): The dataset.
        found (int): How many images it had before ``filter_cfg``. Defaults to 0.
    """
    if found:
        reasons = {
            'filter_empty_gt': 'those without an object of the classes',
            'min_size': 'those with a shorter side',
        }
        settings = [
            f'{name}={value} {reasons.get(name, "")}'.rstrip()
            for name, value in dataset.filter_cfg.items()
        ]
        detail = f'filter_cfg leaves out all {found} images: {", ".join(settings)}'
        return Problem('dataset: empty', dataset.ann_file, detail)
    if dataset.ann_file:
        return Problem('dataset: empty', dataset.ann_file, 'it lists no images')
    folder = dataset.data_prefix.get('img_path') or ''
    detail = (
        f'no file ends in {_either(dataset.img_suffix)}; the folder has '
        f'{contents_of(Path(folder))}. Set img_suffix of the dataset'
    )
    return Problem('dataset: empty', str(folder), detail)


def unlabeled(dataset: Any, infos: list[dict]) -> Problem | None:
    """The problem of a dataset if none of its images has a label.

    Args:
        dataset (BaseSegDataset): The dataset.
        infos (list[dict]): What its ``load_data_list`` returned.
    """
    folder = dataset.data_prefix.get('seg_map_path')
    # Folders elsewhere than on this machine's disk are not looked into.
    if not folder or not os.path.isdir(folder):
        return None
    if any(os.path.isfile(info['seg_map_path']) for info in infos):
        return None
    places = [Path(p) for p in (dataset.data_prefix.get('img_path') or '', folder)]
    images = (Path(os.path.relpath(info['img_path'], places[0])).as_posix() for info in infos)
    stems = [stem_of(name, dataset.img_suffix) or name for name in images]
    labels = (path.relative_to(places[1]).as_posix() for path in places[1].rglob('*.*'))
    endings = label_endings(stems, labels)
    detail = f'no label has the name of an image and ends in {_either(dataset.seg_map_suffix)}; '
    if endings:
        there = _either(endings[:3])
        detail += f'the labels there end in {there}. Set seg_map_suffix={endings[0]!r}'
    else:
        detail += f'the folder has {contents_of(places[1])}, and none has the name of an image'
    return Problem('dataset: no labels', str(folder), detail)


def _either(suffixes: Any) -> str:
    return ' or '.join([suffixes] if isinstance(suffixes, str) else suffixes)
