"""Which images and videos the user means, how images are read, and what results are called."""

import glob
import itertools
import mimetypes
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np

from .errors import ImageError, UserError

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')

VIDEO_SUFFIXES = ('.mp4', '.m4v', '.avi', '.mov', '.mkv', '.webm', '.mpg', '.mpeg', '.wmv', '.gif')
# A file, or the number of a camera.
Source = Path | int


def is_video(source: Source) -> bool:
    """Whether it has more than one frame, by its name."""
    return isinstance(source, int) or source.suffix.lower() in VIDEO_SUFFIXES


def find_sources(inputs: Iterable[str]) -> list[Source]:
    """Images and videos named by files, folders (images only) and globs, and cameras by number."""
    inputs = list(inputs)
    cameras = [item for item in inputs if item.isdecimal() and not Path(item).exists()]
    files = find_images(item for item in inputs if item not in cameras)
    return [*files, *dict.fromkeys(int(number) for number in cameras)]


def left_out(inputs: Iterable[str]) -> list[Path]:
    """Images and videos in the given folders that :func:`find_images` does not take."""
    files = [f for item in inputs if Path(item).is_dir() for f in sorted(Path(item).rglob('*'))]
    return [f for f in files if _is_media(f) and f.suffix.lower() not in IMAGE_SUFFIXES]


def _is_media(path: Path) -> bool:
    kind, _ = mimetypes.guess_type(path.name)
    return kind is not None and kind.startswith(('image/', 'video/')) and path.is_file()


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
                f'{item} names no image. Give image files, folders with images, or globs. Images '
                f'in folders must end in one of {" ".join(IMAGE_SUFFIXES)}.'
            )
        found.update(dict.fromkeys(files))
    return list(found)


def result_names(sources: Sequence[Source]) -> dict[Source, str]:
    """A name for the results of each: its stem, with folders where stems repeat.

    No two names are equal. Where folders are not enough (``../a.jpg`` and ``a.jpg``), a number is
    added.
    """
    stems = {
        source: f'camera_{source}' if isinstance(source, int) else source.stem for source in sources
    }
    counts = Counter(stems.values())
    taken: dict[str, Source] = {}
    for source, stem in stems.items():
        name = stem if counts[stem] == 1 else str(source).strip('./').replace(os.sep, '_')
        numbered = (f'{name}_{number}' for number in itertools.count(2))
        taken[next(n for n in itertools.chain([name], numbered) if n not in taken)] = source
    return {source: name for name, source in taken.items()}


def read_image(path: str | os.PathLike) -> np.ndarray:
    """An image file as BGR, turned as its EXIF data says.

    Args:
        path (str or PathLike): The file.

    Raises:
        ImageError: If it cannot be read.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ImageError(f'{path} cannot be read: {error.strerror}') from None
    image = decode(content)
    if image is None:
        raise ImageError(f'{path} is not an image, or is damaged')
    return image


def decode(content: np.ndarray) -> np.ndarray | None:
    """The content of an image file as BGR; None if that is impossible.

    Args:
        content (np.ndarray): Its bytes, uint8.
    """
    try:
        return cv2.imdecode(content, cv2.IMREAD_COLOR) if len(content) else None
    except (cv2.error, MemoryError):  # the size that a damaged file states can be anything
        return None
