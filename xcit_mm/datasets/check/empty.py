"""Explains why a data set has no images."""

from collections import Counter
from pathlib import Path
from typing import Any

from .problems import Problem


def empty(dataset: Any, found: int = 0) -> Problem:
    """The problem of a data set that has no images.

    Args:
        dataset (BaseDataset): The data set.
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
        return Problem('data set: empty', dataset.ann_file, detail)
    if dataset.ann_file:
        return Problem('data set: empty', dataset.ann_file, 'it lists no images')
    folder, suffix = dataset.data_prefix.get('img_path') or '', dataset.img_suffix
    expected = ' or '.join([suffix] if isinstance(suffix, str) else suffix)
    detail = f'no file ends in {expected}; {_content(Path(folder))}. Set img_suffix of the data set'
    return Problem('data set: empty', str(folder), detail)


def _content(folder: Path) -> str:
    suffixes = Counter(path.suffix or path.name for path in folder.rglob('*') if path.is_file())
    if not suffixes:
        return 'the folder has no files'
    counts = [f'{count} {suffix}' for suffix, count in suffixes.most_common(5)]
    return f'the folder has files of other types: {", ".join(counts)}'
