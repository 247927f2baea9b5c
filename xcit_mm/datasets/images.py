"""Decodes images as training does: checks them, and finds how many bits their values have."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log
from PIL import ExifTags, Image

from xcit_mm_runtime.inputs import bits_of, decode_any_depth, unused_bits

from ..configs import bit_depth
from .problems import Problem

MIN_SIDE = 16
MAX_PIXELS = 50_000_000
MODES = {'CMYK': 'CMYK', 'L': 'gray', '1': 'gray', 'LA': 'alpha', 'RGBA': 'alpha', 'PA': 'alpha'}
# What files begin with that can have 16 bits: PNG, TIFF and PPM.
MAGIC_OF_16_BIT = (b'\x89PNG', b'II*\0', b'MM\0*', b'P5', b'P6')
# How many images of a dataset are looked at before a run.
SAMPLED_FOR_BITS = 8
T = TypeVar('T')
R = TypeVar('R')


def map_in_threads(
    function: Callable[[T], R], items: Iterable[T], workers: int | None = None
) -> Iterator[R]:
    """Apply a function in threads, since decoders release the GIL. Results keep their order.

    Meanwhile, Pillow opens images as large as OpenCV does: 2**30 pixels.

    Args:
        function (callable): Decodes a file.
        items (Iterable): Its arguments.
        workers (int, optional): Number of threads. Defaults to None, one per core.
    """
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, 2**30
    try:
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            yield from pool.map(function, items)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def check_image(
    path: str, size: tuple[int, int] | None = None
) -> tuple[list[Problem], tuple[int, int] | None]:
    """Find problems in an image, with the decoder of training, and Pillow for what it hides.

    Args:
        path (str): Its file.
        size (tuple[int, int], optional): The width and height that it should have. Defaults to
            None, any.

    Returns:
        tuple: The problems; height and width of the image, or None if it cannot be read.
    """
    if not os.path.isfile(path):
        return [Problem('image: missing', path)], None
    content = Path(path).read_bytes()
    if not content:
        return [Problem('image: empty', path)], None
    try:
        with Image.open(path) as image:
            notes = [MODES[image.mode]] if image.mode in MODES else []
            notes += ['gray'] if image.mode.startswith(('I', 'F')) else []
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
            image.load()
        decoded = mmcv.imfrombytes(content)
    except Exception as error:  # a damaged file can raise anything
        kind = 'truncated' if 'truncated' in str(error).lower() else 'unreadable'
        return [Problem(f'image: {kind}', path, str(error))], None
    if decoded is None:
        detail = 'OpenCV, which training uses, cannot read it'
        return [Problem('image: unreadable', path, detail)], None
    problems = [Problem(f'image: {note}', path) for note in notes]
    if (largest := largest_value(path)) is not None:
        detail = f'values up to {largest}, {bits_of(largest)} bits'
        problems.append(Problem('image: 16 bit', path, detail))
    if turned:
        problems.append(Problem('image: rotated by EXIF', path))
    problems += _check_size(path, decoded.shape[:2], size, turned)
    return problems, decoded.shape[:2]


def _check_size(
    path: str, shape: tuple[int, int], size: tuple[int, int] | None, turned: bool
) -> Iterator[Problem]:
    height, width = shape
    if min(height, width) < MIN_SIDE:
        yield Problem('image: tiny', path, f'{width} x {height} pixels')
    if height * width > MAX_PIXELS:
        yield Problem('image: huge', path, f'{width} x {height} pixels')
    if size is not None and size != (width, height):
        exif = ' after rotation by its EXIF entry' if turned else ''
        detail = f'{width} x {height} pixels{exif}; the annotation file says {size[0]} x {size[1]}'
        yield Problem('image: other size', path, detail)


def largest_value(path: str | Path) -> int | None:
    """Return the largest value of a 16-bit image; None for other images and damaged ones."""
    if not os.path.isfile(path):
        return None
    with open(path, 'rb') as file:
        header = file.read(25)
        is_png = header.startswith(b'\x89PNG')
        if not header.startswith(MAGIC_OF_16_BIT) or (is_png and header[24:] != b'\x10'):
            return None  # the header of a PNG says how many bits it has
        content = header + file.read()
    image = decode_any_depth(np.frombuffer(content, np.uint8))
    return int(image.max()) if image is not None and image.dtype == np.uint16 else None


def find_bit_depth(paths: Iterable[str | Path]) -> int | None:
    """Return how many bits the values of 16-bit images have; None if there are no such images."""
    found = [value for value in map_in_threads(largest_value, paths) if value is not None]
    return bits_of(max(found)) if found else None


def warn_of_unused_bits(dataset: Any, cfg: Config) -> None:
    """Warn if images seem to have fewer bits than their files, and the config does not say so.

    Args:
        dataset (BaseDataset): The dataset; some of its images are looked at.
        cfg (Config): The config.
    """
    if bit_depth(cfg) is not None or not hasattr(dataset, 'get_data_info'):
        return
    indices = range(0, len(dataset), max(1, len(dataset) // SAMPLED_FOR_BITS))
    paths = [dataset.get_data_info(index).get('img_path') for index in indices]
    found = [value for path in paths if path and (value := largest_value(path)) is not None]
    if found and (text := unused_bits(max(found))):
        print_log(text, 'current', WARNING)
