"""Path checks that import nothing heavy."""

import difflib
import os
from pathlib import Path


def missing_config(path: str | None) -> str | None:
    """The error message for a config that does not exist; None if it does.

    Args:
        path (str, optional): A file, or ``xcit_mm::detection/NAME.py``, which is not checked.
    """
    if path is None or '::' in path or os.path.isfile(path):
        return None
    return (
        f'There is no config {Path(path).absolute()}. The configs of this project are in '
        'configs/detection/ and configs/segmentation/, for instance '
        'configs/detection/mask_rcnn_xcit_s12_8_3x.py. From anywhere, name installed configs '
        'as xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py.' + _similar(Path(path))
    )


def _similar(path: Path) -> str:
    folder = path.parent
    names = [file.name for file in folder.glob('*.py')] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names)
    return f' Did you mean {folder / close[0]}?' if close else ''
