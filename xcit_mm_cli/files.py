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
        'configs/detection/, segmentation/, classification/ and pretraining/, for instance '
        'configs/detection/mask_rcnn_xcit_s12_8_3x.py. From anywhere, name installed configs '
        'as xcit_mm::detection/mask_rcnn_xcit_s12_8_3x.py.' + did_you_mean(path)
    )


def did_you_mean(path: str, shown: str | None = None) -> str:
    """A question that names a config like one that does not exist, or nothing.

    Args:
        path (str): The file that does not exist.
        shown (str, optional): How the user named it. Defaults to None, as that file.
    """
    folder, name = Path(path).parent, Path(path).name
    names = [file.name for file in folder.glob('*.py')] if folder.is_dir() else []
    close = difflib.get_close_matches(name, names, n=1)
    return f' Did you mean {(shown or path).removesuffix(name)}{close[0]}?' if close else ''
