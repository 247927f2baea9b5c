"""The label map of a large image: a file that is filled tile by tile, then a TIFF and a preview."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime.files import replacing, write_atomically, write_png

from .images import Image
from .store import map_rows, reserve
from .windows import Window, pieces, tiles

# Side of the tiles of the TIFF.
TIFF_TILE = 256
# Above this many bytes of pixels, a file needs BigTIFF's wider offsets.
BIG = 2**32 - 2**25
PREVIEW_SIDE = 1024


class LabelFile:
    """Labels (H, W) in a file that is filled tile by tile, and how many tiles are done.

    Args:
        folder (Path): Where the file is.
        size (tuple[int, int]): Height and width of the image.
        classes (int): Number of classes: labels have 8 bits if that is enough, else 16.
    """

    def __init__(self, folder: Path, size: tuple[int, int], classes: int) -> None:
        self.size = size
        self.dtype = np.dtype(np.uint8 if classes <= 256 else np.uint16)
        self.path = folder / 'labels.raw'
        self.record = folder / 'tiles.txt'
        folder.mkdir(parents=True, exist_ok=True)
        if not self.record.exists():
            reserve(self.path, size[0] * size[1] * self.dtype.itemsize)
            write_atomically(self.record, '0')
        self.done = int(self.record.read_text())

    def rows(self, start: int, stop: int, mode: str = 'r') -> np.ndarray:
        """Return some rows, mapped."""
        return map_rows(self.path, self.dtype, self.size, start, stop, mode)

    def write(self, window: Window, labels: np.ndarray) -> None:
        """Write the next tile."""
        rows = self.rows(window.top, window.bottom, 'r+')
        rows[:, window.left : window.right] = labels
        rows.flush()  # type: ignore[attr-defined]
        self.done += 1
        write_atomically(self.record, str(self.done))


def write_results(
    labels: LabelFile, image: Image, model: Any, out: Path, picture: Path | None = None
) -> None:
    """Write the labels of an image as a TIFF, with its geo-reference, and a preview.

    Args:
        labels (LabelFile): The labels.
        image (Image): The image.
        model (EncoderDecoder): The segmentor, which has the colors of its classes.
        out (Path): The TIFF.
        picture (Path, optional): The preview, a PNG. Defaults to None.
    """
    write_tiff(out, labels, getattr(image, 'geo_tags', []))
    if picture is not None:
        write_preview(picture, image, labels, palette_of(model))


def palette_of(model: Any) -> np.ndarray:
    """Return a color for each class: those of the dataset, or random ones."""
    meta = getattr(model, 'dataset_meta', None) or {}
    classes = max(model.decode_head.out_channels, 2)
    palette = meta.get('palette')
    if palette is not None and len(palette) >= classes:
        return np.asarray(palette)
    return np.random.default_rng(0).integers(0, 256, (classes, 3))


def write_tiff(path: Path, labels: LabelFile, geo_tags: list[tuple]) -> None:
    """Write labels as a compressed TIFF in tiles.

    Args:
        path (Path): The file.
        labels (LabelFile): The labels.
        geo_tags (list[tuple]): Tags that place the image on the earth.
    """
    import tifffile

    def padded() -> Iterator[np.ndarray]:
        for tile in tiles(labels.size, TIFF_TILE):
            full = np.zeros((TIFF_TILE, TIFF_TILE), labels.dtype)
            height, width = tile.size
            rows = labels.rows(tile.top, tile.bottom)
            full[:height, :width] = rows[:, tile.left : tile.right]
            yield full

    size = labels.size[0] * labels.size[1] * labels.dtype.itemsize
    with replacing(path) as unfinished:
        tifffile.imwrite(
            unfinished,
            padded(),
            bigtiff=size > BIG,
            shape=labels.size,
            dtype=labels.dtype,
            tile=(TIFF_TILE, TIFF_TILE),
            compression='zlib',
            photometric='minisblack',
            metadata=None,
            extratags=geo_tags,
        )


def write_preview(path: Path, image: Image, labels: LabelFile, palette: np.ndarray) -> None:
    """Write a small picture of the image with the labels drawn over it.

    Args:
        path (Path): The PNG.
        image (Image): The image.
        labels (LabelFile): The labels.
        palette (np.ndarray): The color of each class, RGB.
    """
    picture, step = read_preview(image)
    colors = palette[:, ::-1].astype(np.float32)
    height = labels.size[0]
    strips = [labels.rows(*strip)[::step, ::step] for strip in _strips(height, step)]
    drawn = colors[np.concatenate(strips) % len(colors)]
    write_png(path, ((picture + drawn) / 2).astype(np.uint8))


def read_preview(image: Image) -> tuple[np.ndarray, int]:
    """Read every n-th row and column of an image, so that a preview of it is small.

    Args:
        image (Image): The image.

    Returns:
        tuple[np.ndarray, int]: The preview, uint8 BGR, and n.
    """
    height, width = image.shape[:2]
    step = max(-(-max(height, width) // PREVIEW_SIDE), 1)
    strips = []
    for start, stop in _strips(height, step):
        pixels = image.read(Window(start, stop, 0, width))[::step, ::step].astype(np.float32)
        strips.append(
            pixels[..., 2::-1] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
        )
    picture = np.concatenate(strips)
    # Images of more than 8 bits have ranges of their own.
    low, high = (
        (0, 255) if picture.min() >= 0 and picture.max() <= 255 else np.percentile(picture, (1, 99))
    )
    shown = np.clip((picture - low) / max(high - low, 1e-6), 0, 1) * 255
    return shown.astype(np.uint8), step


def _strips(height: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield whole strips of the file, of which most rows are skipped: tiles are read once."""
    yield from pieces(height, step * max(TIFF_TILE // step, 1))
