"""Images that are read by windows, never as a whole."""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.inputs import decode_any_depth, to_8_bit
from xcit_mm_runtime.preprocess import to_planes

from ..configs import read_preprocessor
from ..errors import UserError
from .windows import Window

TIFF_SUFFIXES = ('.tif', '.tiff')
# Geo-reference: copied from an image to the labels that are computed from it.
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
Scale = Callable[[np.ndarray], np.ndarray]


class Image(ABC):
    """An image, RGB, gray or with any number of channels.

    Args:
        shape (tuple[int, int, int]): Height, width and channels.
        scale (callable, optional): See :func:`open_image`. Defaults to None.
    """

    def __init__(self, shape: tuple[int, int, int], scale: Scale | None = None) -> None:
        self.shape, self.scale = shape, scale

    def read(self, window: Window) -> np.ndarray:
        """Return a window, (height, width, channels)."""
        pixels = self._pixels(window)
        return self.scale(pixels) if self.scale else pixels

    @abstractmethod
    def _pixels(self, window: Window) -> np.ndarray:
        """Return a window as it is stored."""


class ArrayImage(Image):
    """An image in an array.

    Args:
        array (np.ndarray): (H, W) or (H, W, C), RGB; memory-mapped and zarr arrays stay on disk.
        scale (callable, optional): See :func:`open_image`. Defaults to None.
    """

    def __init__(self, array: Any, scale: Scale | None = None) -> None:
        if array.ndim not in (2, 3):
            raise ValueError(f'an image must have the shape (H, W) or (H, W, C), not {array.shape}')
        super().__init__((*array.shape[:2], array.shape[2] if array.ndim == 3 else 1), scale)
        self.array = array

    def _pixels(self, window: Window) -> np.ndarray:
        part = np.asarray(self.array[window.top : window.bottom, window.left : window.right])
        return part.reshape(*window.size, self.shape[2])


class TiffImage(Image):
    """The first picture of a TIFF, in strips or tiles, compressed or not.

    tifffile itself reads windows only through zarr, which would be one more dependency.

    Args:
        path (str or Path): The file.
        scale (callable, optional): See :func:`open_image`. Defaults to None.
    """

    def __init__(self, path: str | Path, scale: Scale | None = None) -> None:
        tifffile = _import('tifffile', path)
        self.path = Path(path)
        size = self.path.stat().st_size
        try:
            self.file = tifffile.TiffFile(self.path)
            page = self.file.pages[0]
            end = max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)), default=0)
        except (tifffile.TiffFileError, IndexError, ValueError) as error:
            raise UserError(f'{path} is cut off, or not a TIFF: {error}.') from error
        if end > size:
            raise UserError(
                f'{path} is cut off: its pixels end at byte {end:,}, and the file has {size:,} '
                'bytes. Copy it again.'
            )
        if page.imagedepth != 1 or page.planarconfig != 1:
            raise UserError(
                f'{path} has planar channels or is a volume: convert it to a two-dimensional TIFF '
                'with interleaved channels.'
            )
        self.page = page
        super().__init__((page.imagelength, page.imagewidth, page.samplesperpixel), scale)

    @property
    def geo_tags(self) -> list[tuple]:
        """The geo-reference, as tifffile writes it; empty if there is none."""
        tags = [self.page.tags.get(code) for code in GEO_TAGS]
        return [(t.code, int(t.dtype), t.count, t.value, True) for t in tags if t is not None]

    def _pixels(self, window: Window) -> np.ndarray:
        part = np.zeros((*window.size, self.shape[2]), self.page.dtype)
        (rows, columns), across = self.page.chunks[:2], self.page.chunked[1]
        for i in range(window.top // rows, -(-window.bottom // rows)):
            for j in range(window.left // columns, -(-window.right // columns)):
                segment, (_, _, top, left, _), _ = self._decode(i * across + j)
                if segment is None:
                    continue  # a tile that was never written: zeros
                there = Window(top, top + segment.shape[1], left, left + segment.shape[2])
                common = there.common(window)
                part[common.within(window)] = segment[0][common.within(there)]
        return part

    def _decode(self, index: int) -> tuple:
        """Return a strip or a tile (1, height, width, channels), its position and its shape."""
        page, handle = self.page, self.file.filehandle
        count = page.databytecounts[index]
        handle.seek(page.dataoffsets[index])
        try:
            content = handle.read(count) if count else None
            return page.decode(content, index, jpegtables=page.jpegtables)
        except Exception as error:  # each codec has its own
            raise UserError(f'{self.path} cannot be read: {error}.') from error


def open_image(source: Any, scale: Scale | None = None) -> Image:
    """Open an image so that windows of it can be read.

    Args:
        source (str, Path or np.ndarray): A TIFF, a ``.npy`` file, or a zarr array; other files are
            read at once. An array is used as it is, and so is anything like an :class:`Image`.
        scale (callable, optional): What is done to each window, such as ``to_8_bit``. Defaults to
            None.
    """
    if not isinstance(source, (str, Path)):
        return source if hasattr(source, 'read') else ArrayImage(source, scale)
    path = Path(source)
    suffix = path.suffix.lower()
    if not path.exists():
        raise UserError(f'There is no image {path}.')
    if suffix in TIFF_SUFFIXES:
        return TiffImage(path, scale)
    try:
        if suffix == '.npy':
            return ArrayImage(np.load(path, mmap_mode='r', allow_pickle=False), scale)
        if suffix == '.zarr':
            return ArrayImage(_import('zarr', path).open_array(str(path), mode='r'), scale)
    except (ValueError, EOFError) as error:
        raise UserError(f'{path} cannot be read: {error}.') from error
    image = decode_any_depth(np.fromfile(path, np.uint8)) if path.is_file() else None
    if image is None:
        raise UserError(f'{path} cannot be read. Give a TIFF, a .npy file, a zarr array or a PNG.')
    return ArrayImage(image[..., ::-1], scale or functools.partial(to_8_bit, bit_depth=16))


def _import(name: str, path: str | Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f'{path} needs {name}: pip install {name}.') from None


class Prepare:
    """Turns a window of an image into what the backbone takes, as mmdet and mmseg do.

    Args:
        channels (int): Channels that the backbone takes.
        preprocessor (nn.Module, optional): The model's data preprocessor, which knows the order of
            the channels, mean and deviation. Defaults to None: the pixels as they are.
        device (torch.device): Where the result goes. Defaults to the CPU.
        channel_order (str): ``rgb`` or ``bgr``, if there is no preprocessor. Defaults to ``rgb``.
    """

    def __init__(
        self,
        channels: int,
        preprocessor: Any = None,
        device: torch.device | str = 'cpu',
        channel_order: str = 'rgb',
    ) -> None:
        self.channels, self.device = channels, device
        self.order, self.mean, self.std = channel_order, None, None
        if preprocessor is not None:
            self.order, self.mean, self.std, *_ = read_preprocessor(preprocessor)

    def check(self, image: Image) -> None:
        """Raise if an image does not have the channels that the backbone takes."""
        found = image.shape[2]
        if found != self.channels and not (self.channels == 3 and found in (1, 4)):
            raise UserError(
                f'The image has {found} channels, and the backbone takes {self.channels}.'
            )

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """Turn pixels (h, w, C), RGB if they have three channels, into (1, C, h, w)."""
        if self.channels == 3:
            # As OpenCV reads them: gray in all three channels, no transparency, and BGR.
            gray = pixels.shape[2] == 1
            pixels = pixels.repeat(3, axis=2) if gray else pixels[..., 2::-1]
        planes = to_planes(pixels[None], self.order, self.mean, self.std, 'float32')
        return torch.from_numpy(planes).to(self.device)
