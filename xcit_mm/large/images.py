"""Images that are read by windows, never as a whole."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.inputs import decode_any_depth, to_8_bit

from ..errors import UserError
from .windows import Window

TIFF_SUFFIXES = ('.tif', '.tiff')
# Geo-reference: copied from an image to the labels that are computed from it.
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
Scale = Callable[[np.ndarray], np.ndarray]


class Image(Protocol):
    """An image, RGB, gray or with any number of channels."""

    shape: tuple[int, int, int]

    def read(self, window: Window) -> np.ndarray:
        """Return a window, (height, width, channels)."""


class ArrayImage:
    """An image in an array.

    Args:
        array (np.ndarray): (H, W) or (H, W, C), RGB; memory-mapped and zarr arrays stay on disk.
        scale (callable, optional): See :func:`open_image`. Defaults to None.
    """

    def __init__(self, array: Any, scale: Scale | None = None) -> None:
        if array.ndim not in (2, 3):
            raise ValueError(f'an image must have the shape (H, W) or (H, W, C), not {array.shape}')
        self.array, self.scale = array, scale
        channels = array.shape[2] if array.ndim == 3 else 1
        self.shape = (array.shape[0], array.shape[1], channels)

    def read(self, window: Window) -> np.ndarray:
        part = np.asarray(self.array[window.top : window.bottom, window.left : window.right])
        part = part.reshape(*window.size, self.shape[2])
        return self.scale(part) if self.scale else part


class TiffImage:
    """The first picture of a TIFF, in strips or tiles, compressed or not.

    tifffile itself reads windows only through zarr, which would be one more dependency.

    Args:
        path (str or Path): The file.
        scale (callable, optional): See :func:`open_image`. Defaults to None.
    """

    def __init__(self, path: str | Path, scale: Scale | None = None) -> None:
        tifffile = _tifffile()
        self.path, self.scale = Path(path), scale
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
        self.shape = (page.imagelength, page.imagewidth, page.samplesperpixel)

    @property
    def geo_tags(self) -> list[tuple]:
        """The geo-reference, as tifffile writes it; empty if there is none."""
        tags = [self.page.tags.get(code) for code in GEO_TAGS]
        return [(t.code, int(t.dtype), t.count, t.value, True) for t in tags if t is not None]

    def read(self, window: Window) -> np.ndarray:
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
        return self.scale(part) if self.scale else part

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


def open_image(path: str | Path, scale: Scale | None = None) -> Image:
    """Open an image so that windows of it can be read.

    Args:
        path (str or Path): A TIFF, a ``.npy`` file, or a zarr array. Other images are read at once.
        scale (callable, optional): What is done to each window, such as ``to_8_bit``. Defaults to
            None.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.exists():
        raise UserError(f'There is no image {path}.')
    if suffix in TIFF_SUFFIXES:
        return TiffImage(path, scale)
    try:
        if suffix == '.npy':
            return ArrayImage(np.load(path, mmap_mode='r', allow_pickle=False), scale)
        if suffix == '.zarr':
            return ArrayImage(_open_zarr(path), scale)
    except (ValueError, EOFError) as error:
        raise UserError(f'{path} cannot be read: {error}.') from error
    image = decode_any_depth(np.fromfile(path, np.uint8)) if path.is_file() else None
    if image is None:
        raise UserError(f'{path} cannot be read. Give a TIFF, a .npy file, a zarr array or a PNG.')
    return ArrayImage(image[..., ::-1], scale or functools.partial(to_8_bit, bit_depth=16))


def _open_zarr(path: Path) -> Any:
    try:
        import zarr
    except ImportError:
        raise UserError(f'{path} needs zarr: pip install zarr.') from None
    return zarr.open_array(str(path), mode='r')


def _tifffile() -> Any:
    try:
        import tifffile
    except ImportError:
        raise UserError('TIFFs need tifffile: pip install tifffile.') from None
    return tifffile


class Prepare:
    """Turns a window of an image into what the backbone takes, as mmseg does.

    Args:
        channels (int): Channels that the backbone takes.
        preprocessor (nn.Module, optional): The model's data preprocessor, which knows the order of
            the channels, mean and deviation. Defaults to None: the pixels as they are.
        device (torch.device): Where the result goes. Defaults to the CPU.
        is_bgr (bool): Whether three channels become BGR, if there is no preprocessor. Defaults to
            False.
    """

    def __init__(
        self,
        channels: int,
        preprocessor: Any = None,
        device: torch.device | str = 'cpu',
        is_bgr: bool = False,
    ) -> None:
        self.channels = channels
        self.device = device
        self.mean: Tensor | None = None
        self.is_bgr = is_bgr
        if preprocessor is not None:
            # mmcv reads BGR, which the preprocessor turns to RGB if asked to.
            self.is_bgr = not preprocessor.channel_conversion
            if preprocessor._enable_normalize:
                self.mean, self.std = preprocessor.mean.cpu(), preprocessor.std.cpu()

    def check(self, image: Image) -> None:
        """Raise if an image does not have the channels that the backbone takes."""
        found = image.shape[2]
        if found != self.channels and not (self.channels == 3 and found in (1, 4)):
            raise UserError(
                f'The image has {found} channels, and the backbone takes {self.channels}.'
            )

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """Turn pixels (h, w, C), RGB if they have three channels, into (1, C, h, w)."""
        if self.channels == 3 and pixels.shape[2] != 3:
            # As OpenCV reads them: gray in all three channels, and no transparency.
            pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
        if self.is_bgr and self.channels == 3:
            pixels = pixels[..., ::-1]
        x = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)).permute(2, 0, 1)
        if self.mean is not None:
            x = (x - self.mean) / self.std
        return x[None].to(self.device)
