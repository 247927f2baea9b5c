"""Cuts a large image so that a memory limit holds, decided before the work begins."""

import json
import mmap
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xcit_mm_runtime.files import write_atomically

from ..errors import UserError
from ..models.fast import HALO

UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
FLOAT = 4
# Strips of more memory, or of as many rows, gain nothing: the rows of neighbors are few next to
# them by then. So memory hardly grows with the image, even below the limit.
MAX_STRIP = 256 * 2**20
MAX_ROWS, ENOUGH_ROWS = 64, 16
# Sides of tiles in pixels. TIFF wants multiples of 16.
TILES = (1024, 512, 256, 128, 64)
# Rows of pixels of a tile that are classified at a time, at the resolution of the image.
BAND = 32
# What the allocator, the libraries and the progress bar may take on top of our own arrays.
RESERVE = 128 * 2**20


def parse_bytes(text: str) -> int:
    """Return ``4GB``, ``512 MB`` or a number as bytes; units are powers of 1,024."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?', text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ValueError(f'{text!r} must be an amount of memory such as 4GB')
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """Return an amount of memory for people."""
    unit = next(u for u in UNITS if count < 1000 * UNITS[u] or u == 'T')
    return f'{count / UNITS[unit]:.3g} {unit}B'


@dataclass(frozen=True)
class TilingPlan:
    """A way to cut an image into strips and tiles.

    Args:
        grid (tuple[int, int]): Height and width of the token grid.
        rows (int): Rows of tokens per strip.
        tile (int): Side of the tiles of neck and head, in pixels; 0 without them.
        tokens_bytes (int): What all tokens of one layer take.
        on_disk (bool): Whether the tokens are in files.
    """

    grid: tuple[int, int]
    rows: int
    tile: int
    tokens_bytes: int
    on_disk: bool

    def describe(self) -> str:
        """Return one line for the user."""
        where = 'in files' if self.on_disk else 'in memory'
        tiles = f', tiles of {self.tile} pixels' if self.tile else ''
        return (
            f'{self.grid[0]} x {self.grid[1]} tokens, {format_bytes(self.tokens_bytes)} {where}, '
            f'strips of {self.rows} rows{tiles}'
        )


def make_plan(
    backbone: Any,
    shape: tuple[int, int, int],
    memory: int | None,
    folder: Path | None = None,
    segmentor: Any = None,
) -> TilingPlan:
    """Decide how to cut an image.

    Args:
        backbone (XCiT): The backbone.
        shape (tuple[int, int, int]): Height, width and channels of the image.
        memory (int, optional): What the process may use in bytes, all included; None for no limit.
        folder (Path, optional): Where the tokens go. Defaults to None: they stay in memory.
        segmentor (EncoderDecoder, optional): The segmentor, whose neck and head run too.

    Raises:
        UserError: If the memory limit or the disk is too small.
    """
    patch, dims, on_disk = backbone.patch_size, backbone.embed_dims, folder is not None
    grid = (-(-shape[0] // patch), -(-shape[1] // patch))
    tokens = grid[0] * grid[1] * dims * FLOAT
    # One array is worked on in place, and each level but the last keeps a copy.
    resident = 0 if on_disk else tokens * len(backbone.out_indices)
    fixed = memory_in_use() + RESERVE + resident
    row = _bytes_per_row(backbone, shape, grid[1])
    tile = TILES[-1] if segmentor is not None else 0
    least = fixed + max((1 + 2 * HALO) * row, _bytes_per_tile(segmentor, tile))
    if memory is not None and memory < least:
        kept = '' if on_disk else f', {format_bytes(resident)} of it for the tokens'
        raise UserError(
            f'{format_bytes(memory)} of memory are not enough for an image of {shape[1]} x '
            f'{shape[0]} pixels: it takes at least {format_bytes(least)}{kept}. Raise the limit'
            + ('.' if on_disk else ', or let the tokens live in files.')
        )
    free = float('inf') if memory is None else memory - fixed
    useful = min(max(MAX_STRIP // row, ENOUGH_ROWS), MAX_ROWS, grid[0])
    rows = max(int(min(free / row - 2 * HALO, useful)), 1)
    if segmentor is not None:
        tile = next(side for side in TILES if _bytes_per_tile(segmentor, side) <= free)
    if folder is not None:
        # All levels but the last, and the two files between which a layer works.
        needed = (len(backbone.out_indices) + 1) * tokens + _label_bytes(segmentor, shape)
        folder.mkdir(parents=True, exist_ok=True)
        if (left := shutil.disk_usage(folder).free) < needed:
            raise UserError(
                f'The disk of {folder} has {format_bytes(left)} left, and the work needs '
                f'{format_bytes(needed)}. Free some space, or write elsewhere.'
            )
    return TilingPlan(grid, rows, tile, tokens, on_disk)


def _bytes_per_row(backbone: Any, shape: tuple[int, int, int], width: int) -> int:
    """Return the most that one row of tokens takes at a time, in the stem or in a layer."""
    patch, dims = backbone.patch_size, backbone.embed_dims
    # Pixels as they are read, and as floats before and after normalization and padding.
    pixels = 4 * patch * shape[1] * max(shape[2], backbone.in_channels) * FLOAT
    # The first map of the stem, its GELU, and the second map.
    first = backbone.patch_embed.layers[0].conv.out_channels * (patch // 2) ** 2 * width * FLOAT
    # A strip as it is read, its copy with neighbors, two temporary ones, and what is written.
    layer = 6 * width * dims * FLOAT
    return max(pixels + 4 * first, layer)


def _bytes_per_tile(segmentor: Any, side: int) -> int:
    """Return the most that a tile of neck and head takes at a time."""
    if segmentor is None:
        return 0
    head = segmentor.decode_head
    dims, channels = segmentor.backbone.embed_dims, head.channels
    if hasattr(head, 'psp_modules'):
        # All levels at the finest resolution, twice, and what is made of them.
        width = 4 * dims + 3 * len(head.in_index) * channels
    else:
        neck = segmentor.neck.out_channels if segmentor.with_neck else dims
        width = 4 * dims + 4 * max(neck, channels)
    stride = min(segmentor.backbone.pyramid.strides)
    finest = (side // stride + 16) ** 2 * (width + 2 * head.out_channels)
    pixels = 4 * BAND * side * head.out_channels
    return (finest + pixels) * FLOAT


def _label_bytes(segmentor: Any, shape: tuple[int, int, int]) -> int:
    """Return what the labels take: as they are, and as a TIFF that does not compress at all."""
    if segmentor is None:
        return 0
    return 2 * shape[0] * shape[1] * (2 if segmentor.decode_head.out_channels > 256 else 1)


def memory_in_use() -> int:
    """Return the bytes of memory that this process uses."""
    status = Path('/proc/self/statm')
    if not status.exists():  # only Linux has it: what torch and the OpenMMLab stack take
        return 600 * 2**20
    return int(status.read_text().split()[1]) * mmap.PAGESIZE


def read_plan(path: Path, job: str) -> TilingPlan:
    """Return the plan of unfinished work: only the same plan gives the same bytes.

    Args:
        path (Path): Where :func:`write_plan` recorded it.
        job (str): Identifies image, weights and settings.

    Raises:
        UserError: If it is the work of another job.
    """
    content = json.loads(path.read_text(encoding='utf-8'))
    if content['job'] != job:
        raise UserError(
            f'{path.parent} has unfinished work on another image, or with other weights or '
            'settings. Repeat that command, start over with --force, or write elsewhere with '
            '--out-dir.'
        )
    settings = content['plan']
    return TilingPlan(**{**settings, 'grid': tuple(settings['grid'])})


def write_plan(path: Path, job: str, plan: TilingPlan) -> None:
    """Record a plan before the work begins."""
    write_atomically(path, json.dumps({'job': job, 'plan': asdict(plan)}))
