"""Which images the user means, how they are read, and what their results are called."""

import glob
import itertools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import mmcv
import numpy as np

from ..errors import UserError

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')


def find_images(inputs: Iterable[str]) -> list[Path]:
    """Images named by files, folders (searched recursively) and globs, sorted, each once."""
    found: dict[Path, None] = {}
    for item in inputs:
        path = Path(item)
        if path.is_dir():
            files = [f for f in sorted(path.rglob('*')) if f.suffix.lower() in IMAGE_SUFFIXES]
        elif path.is_file():
            files = [path]
        else:
            files = [Path(f) for f in sorted(glob.glob(item, recursive=True))]
            files = [f for f in files if f.is_file()]
        if not files:
            raise UserError(
                f'{item} names no image. Give image files, folders with images, or globs.'
            )
        found.update(dict.fromkeys(files))
    return list(found)


def result_names(images: list[Path]) -> dict[Path, str]:
    """A name for the results of each image: its stem, with folders where stems repeat.

    No two names are equal. Where folders are not enough (``../a.jpg`` and ``a.jpg``), a number is
    added.
    """
    counts = Counter(image.stem for image in images)
    taken: dict[str, Path] = {}
    for image in images:
        path = str(image).strip('./').replace(os.sep, '_')
        name = image.stem if counts[image.stem] == 1 else path
        numbered = (f'{name}_{number}' for number in itertools.count(2))
        taken[next(n for n in itertools.chain([name], numbered) if n not in taken)] = image
    return {image: name for name, image in taken.items()}


def read_image(path: Path) -> np.ndarray | None:
    """The image as BGR, or None if it cannot be read."""
    try:
        return mmcv.imread(str(path), channel_order='bgr')
    except Exception:  # a damaged file can raise anything
        return None
