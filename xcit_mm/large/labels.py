"""The label map of a large image: a file that is filled tile by tile, then a TIFF and a preview."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime.draw import colors
from xcit_mm_runtime.files import replacing, write_atomically, write_png
from xcit_mm_runtime.results import label_type

from .images import Image
from .store import Rows
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
        self.rows = Rows(size, folder / 'labels.raw', label_type(classes))
        self.size = size
        self.record = folder / 'tiles.txt'
        folder.mkdir(parents=True, exist_ok=True)
        if not self.record.exists():
            self.rows.reserve()
            write_atomically(self.record, '0')
        self.done = int(self.record.read_text())

    def write(self, window: Window, labels: np.ndarray) -> None:
        """Write the next tile."""
        rows = self.rows.map(window.top, window.bottom, 'r+')
        rows[:, window.left : window.right] = labels
        rows.flush()  # type: ignore[attr-defined]
        self.done += 1
        write_atomically(self.record, str(self.done))


def write_results(
    labels: LabelFile, image: Image, model: Any, out: Path, picture: Path | None = None
) -> None:
    """Write the labels of an image as a compressed TIFF, with its geo-reference, and a preview.

    Args:
        labels (LabelFile): The labels.
        image (Image): The image.
        model (EncoderDecoder): The segmentor, which has the colors of its classes.
        out (Path): The TIFF.
        picture (Path, optional): The preview, a PNG with the labels drawn over the image. Defaults
            to None.
    """
    import tifffile

    with replacing(out) as unfinished:
        tifffile.imwrite(
            unfinished,
            _tiff_tiles(labels),
            bigtiff=labels.size[0] * labels.size[1] * labels.rows.dtype.itemsize > BIG,
            shape=labels.size,
            dtype=labels.rows.dtype,
            tile=(TIFF_TILE, TIFF_TILE),
            compression='zlib',
            photometric='minisblack',
            metadata=None,
            extratags=getattr(image, 'geo_tags', []),
        )
    if picture is not None:
        shown, step = read_preview(image)
        strips = _strips(labels.size[0], step)
        drawn = np.concatenate([labels.rows.map(*strip)[::step, ::step] for strip in strips])
        palette = (getattr(model, 'dataset_meta', None) or {}).get('palette')
        bgr = np.array(colors(max(model.decode_head.out_channels, 2), palette), np.float32)
        write_png(picture, ((shown + bgr[drawn % len(bgr)]) / 2).astype(np.uint8))


def _tiff_tiles(labels: LabelFile) -> Iterator[np.ndarray]:
    for tile in tiles(labels.size, TIFF_TILE):
        full = np.zeros((TIFF_TILE, TIFF_TILE), labels.rows.dtype)
        height, width = tile.size
        full[:height, :width] = labels.rows.map(tile.top, tile.bottom)[:, tile.left : tile.right]
        yield full


def read_preview(image: Image) -> tuple[np.ndarray, int]:
    """Return every n-th row and column of an image, uint8 BGR, and n: a small preview."""
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
