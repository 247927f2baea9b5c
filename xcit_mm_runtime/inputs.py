"""Finds the images and videos that the user names, reads images, and names their results."""

import glob
import itertools
import mimetypes
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from .errors import ImageError, UserError

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')

VIDEO_SUFFIXES = ('.mp4', '.m4v', '.avi', '.mov', '.mkv', '.webm', '.mpg', '.mpeg', '.wmv', '.gif')
# The path of a file, or the number of a camera. Paths are text: as Path objects, millions of them
# would take gigabytes.
MediaSource = str | int
# How many files of a list are looked for before any work starts.
LOOKED_FOR = 100
# How many bits cameras and scanners give the values of 16-bit files.
BIT_DEPTHS = (8, 10, 12, 14, 16)


def is_video(source: MediaSource) -> bool:
    """Return whether a source has more than one frame, by its name."""
    return isinstance(source, int) or _suffix(source) in VIDEO_SUFFIXES


def find_sources(inputs: Iterable[str]) -> list[MediaSource]:
    """Return images and videos, named as for :func:`find_images`, and cameras by number."""
    inputs = list(inputs)
    cameras = [item for item in inputs if item.isdecimal() and not Path(item).exists()]
    files = _find_files(item for item in inputs if item not in cameras)
    return [*files, *dict.fromkeys(int(number) for number in cameras)]


def unsupported_files(inputs: Iterable[str]) -> Iterator[str]:
    """Yield images and videos in the given folders that :func:`find_images` does not take."""
    for item in inputs:
        if os.path.isdir(item):
            yield from filter(_is_unsupported, _walk(item))


def _is_unsupported(path: str) -> bool:
    if _suffix(path) in IMAGE_SUFFIXES:
        return False
    kind, _ = mimetypes.guess_type(path)
    return kind is not None and kind.startswith(('image/', 'video/')) and os.path.isfile(path)


def find_images(inputs: Iterable[str]) -> list[Path]:
    """Return images named by files, folders (searched recursively), globs and lists, each once.

    Folders and globs are sorted, so every process finds the same images in the same order. A list
    is written ``@FILE``, and has one path per line.
    """
    return [Path(file) for file in _find_files(inputs)]


def _find_files(inputs: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for item in inputs:
        if os.path.isdir(item):
            files = [file for file in _walk(item) if _suffix(file) in IMAGE_SUFFIXES]
        elif os.path.isfile(item):
            files = [str(Path(item))]
        elif item.startswith('@'):
            files = _read_list(item[1:])
        else:
            # What has the name of an image is not looked at: that takes long on a network.
            named = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
            matches = sorted(glob.glob(item, recursive=True))
            files = [str(Path(f)) for f in matches if _suffix(f) in named or os.path.isfile(f)]
        if not files:
            raise UserError(
                f'{item} names no image. Give image files, folders with images, globs, or a list '
                f'of files as @FILE. Images in folders must end in one of '
                f'{" ".join(IMAGE_SUFFIXES)}.'
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _walk(folder: str) -> Iterator[str]:
    """Yield all files below a folder, sorted, without asking the disk about each of them."""
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    folder = str(Path(folder))
    for name, is_folder in found:
        path = name if folder == os.curdir else os.path.join(folder, name)
        if is_folder:
            yield from _walk(path)
        else:
            yield path


def _read_list(path: str) -> list[str]:
    """Return the files of a list with one path per line."""
    try:
        # Names are not always UTF-8. Editors on Windows add a mark at the beginning.
        with open(path, encoding='utf-8-sig', errors='surrogateescape') as file:
            lines = (line.rstrip('\n') for line in file)
            files = [str(Path(line)) for line in lines if line and not line.isspace()]
    except OSError as error:
        raise UserError(f'The list {path} cannot be read: {error.strerror}.') from None
    if any('\0' in file for file in files):
        raise UserError(f'{path} is not a list of files, which is a text with one path per line.')
    if files and not any(map(os.path.exists, files[:LOOKED_FOR])):
        raise UserError(
            f'The list {path} begins with files that do not exist, such as {files[0]}. Paths in a '
            f'list are relative to the current folder, {os.getcwd()}.'
        )
    return files


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


class ResultNames:
    """Names the results of each source: by its stem, with folders where stems repeat.

    No two names are equal. Where folders are not enough (``../a.jpg`` and ``a.jpg``), a number is
    added. Only names that are not stems are kept, as there can be millions.

    Args:
        sources (Sequence): Files and cameras.
    """

    def __init__(self, sources: Sequence[MediaSource | Path]) -> None:
        self.sources = sources
        counts = Counter(map(_stem, sources))
        self.others: dict[int, str] = {}
        for i, source in enumerate(sources):
            if counts[_stem(source)] > 1:
                name = str(source).strip('./').replace(os.sep, '_')
                numbered = (f'{name}_{number}' for number in itertools.count(2))
                free = (n for n in itertools.chain([name], numbered) if n not in counts)
                self.others[i] = next(free)
                counts[self.others[i]] = 1

    def __getitem__(self, index: int) -> str:
        return self.others.get(index) or _stem(self.sources[index])


def _stem(source: MediaSource | Path) -> str:
    if isinstance(source, int):
        return f'camera_{source}'
    return os.path.splitext(os.path.basename(source))[0]


def read_image(path: str | os.PathLike, bit_depth: int | None = None) -> np.ndarray:
    """Read an image file as BGR of 8 bits, turned as its EXIF data says.

    Args:
        path (str or PathLike): The file.
        bit_depth (int, optional): As for :func:`decode`.

    Raises:
        ImageError: If it cannot be read.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ImageError(f'{path} cannot be read: {error.strerror}') from None
    image = decode(content, bit_depth)
    if image is None:
        raise ImageError(f'{path} is not an image, or is damaged')
    return image


def decode(content: np.ndarray, bit_depth: int | None = None) -> np.ndarray | None:
    """Return the content of an image file as BGR of 8 bits; None if that is impossible.

    Args:
        content (np.ndarray): Its bytes, uint8.
        bit_depth (int, optional): How many bits the values of 16-bit images have, see
            :func:`to_8_bit`. Defaults to None: 16, with a warning if they seem to have fewer.
    """
    image = decode_any_depth(content)
    if image is None or image.dtype == np.uint8:
        return image
    if image.dtype == np.uint16 and bit_depth is not None:
        return to_8_bit(image, bit_depth)
    if image.dtype == np.uint16 and (text := unused_bits(int(image.max()))):
        warnings.warn(text, stacklevel=2)
    return _decode(content, cv2.IMREAD_COLOR)


def decode_any_depth(content: np.ndarray) -> np.ndarray | None:
    """Do the same as :func:`decode`, but keep the type: uint8, uint16 or another."""
    return _decode(content, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)


def _decode(content: np.ndarray, flags: int) -> np.ndarray | None:
    try:
        return cv2.imdecode(content, flags) if len(content) else None
    except (cv2.error, MemoryError):  # the size that a damaged file states can be anything
        return None


def to_8_bit(image: np.ndarray, bit_depth: int) -> np.ndarray:
    """Scale a 16-bit image to 8 bits; others stay as they are.

    Args:
        image (np.ndarray): The image; it is scaled if its type is uint16.
        bit_depth (int): How many bits its values have, 8 to 16: with 12, values of 0 to 4095 become
            0 to 255. Larger values become 255.
    """
    if image.dtype != np.uint16:
        return image
    return np.minimum(image >> (bit_depth - 8), 255).astype(np.uint8)


def to_16_bit(image: np.ndarray, bit_depth: int) -> np.ndarray:
    """Scale a 16-bit image whose values have fewer bits to all of them; see :func:`to_8_bit`."""
    if image.dtype != np.uint16:
        return image
    return np.minimum(image, 2**bit_depth - 1) << (16 - bit_depth)


def to_network_depth(image: np.ndarray, channels: int, bit_depth: int) -> np.ndarray:
    """Scale a 16-bit image as networks take it: three channels to 8 bits, others to all 16."""
    return (to_8_bit if channels == 3 else to_16_bit)(image, bit_depth)


def bits_of(maximum: int) -> int:
    """Return the smallest of :data:`BIT_DEPTHS` that a largest value fits in."""
    return next(bits for bits in BIT_DEPTHS if maximum < 2**bits)


def unused_bits(maximum: int) -> str | None:
    """Return advice on 16-bit images with this largest value, if they look like fewer bits."""
    bits = bits_of(maximum)
    if bits == 16 or maximum == 0:
        return None
    return (
        f'A 16-bit image looks like {bits} bits: no value is above {2**bits - 1}. It is read as 16 '
        'bits, which makes it dark. If your images have fewer bits, set bit_depth in the pipelines '
        f'of the config, for instance bit_depth={bits}: see docs/custom_data.md.'
    )
