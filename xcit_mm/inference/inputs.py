"""Which images the user means, how they are read, and what their results are called."""

import glob
import os
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
    """A name for the results of each image: its stem, with folders where stems repeat."""
    stems: dict[str, int] = {}
    for image in images:
        stems[image.stem] = stems.get(image.stem, 0) + 1
    names = {
        image: image.stem if stems[image.stem] == 1 else str(image).strip('./').replace(os.sep, '_')
        for image in images
    }
    return names


def read_image(path: Path) -> np.ndarray | None:
    """The image as BGR, or None if it cannot be read."""
    try:
        return mmcv.imread(str(path), channel_order='bgr')
    except Exception:  # a damaged file can raise anything
        return None
