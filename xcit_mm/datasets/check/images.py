"""Checks images with the decoder that training uses, and with Pillow for what it hides."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import mmcv
import numpy as np
from PIL import ExifTags, Image

from xcit_mm_runtime.inputs import bits_of, decode_any_depth

from .problems import Problem

MIN_SIDE = 16
MAX_PIXELS = 50_000_000
MODES = {'CMYK': 'CMYK', 'L': 'gray', '1': 'gray', 'LA': 'alpha', 'RGBA': 'alpha', 'PA': 'alpha'}


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Let Pillow open images as large as OpenCV does: 2**30 pixels."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, 2**30
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def check_image(
    path: str, size: tuple[int, int] | None = None
) -> tuple[list[Problem], tuple[int, int] | None]:
    """Find problems in an image.

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
            notes = _notes(image, content)
            image.load()
    except Exception as error:  # a damaged file can raise anything
        cut = 'truncated' in str(error).lower()
        kind = 'image: truncated' if cut else 'image: unreadable'
        return [Problem(kind, path, str(error))], None
    try:
        decoded = mmcv.imfrombytes(content)
    except Exception:
        decoded = None
    if decoded is None:
        detail = 'OpenCV, which training uses, cannot read it'
        return [Problem('image: unreadable', path, detail)], None
    details = {'16 bit': _range(content)} if '16 bit' in notes else {}
    problems = [Problem(f'image: {note}', path, details.get(note, '')) for note in notes]
    problems += _check_size(path, decoded, size, 'rotated by EXIF' in notes)
    return problems, decoded.shape[:2]


def _notes(image: Image.Image, content: bytes) -> list[str]:
    notes = [MODES[image.mode]] if image.mode in MODES else []
    if image.mode.startswith(('I', 'F')):
        notes.append('gray')
    # Pillow reads 16-bit color PNGs as 8 bits, so the header is checked.
    if image.mode.startswith('I') or (image.format == 'PNG' and content[24] == 16):
        notes.append('16 bit')
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        notes.append('rotated by EXIF')
    return notes


def _range(content: bytes) -> str:
    image = decode_any_depth(np.frombuffer(content, np.uint8))
    if image is None or image.dtype != np.uint16:
        return ''
    return f'values up to {image.max()}, {bits_of(int(image.max()))} bits'


def _check_size(
    path: str, decoded: np.ndarray, size: tuple[int, int] | None, turned: bool
) -> Iterator[Problem]:
    height, width = decoded.shape[:2]
    if min(height, width) < MIN_SIDE:
        yield Problem('image: tiny', path, f'{width} x {height} pixels')
    if height * width > MAX_PIXELS:
        yield Problem('image: huge', path, f'{width} x {height} pixels')
    if size is not None and size != (width, height):
        exif = ' after rotation by its EXIF entry' if turned else ''
        yield Problem(
            'image: other size',
            path,
            f'{width} x {height} pixels{exif}; the annotation file says {size[0]} x {size[1]}',
        )
