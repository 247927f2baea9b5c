"""Where the tokens of a large image live: in memory or in files."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.files import replacing

from ..models.fast import StatisticsSum
from .windows import Window


class Rows:
    """Tokens (H, W, d) in memory or in a file, of which only a few rows are mapped at a time.

    A file that is mapped as a whole would count as memory of the process, page by page.

    Args:
        shape (tuple[int, int, int]): Height and width of the grid, and width of the tokens.
        path (Path, optional): The file. Defaults to None: memory.
    """

    def __init__(self, shape: tuple[int, int, int], path: Path | None = None) -> None:
        self.shape = shape
        self.path = path
        self.array = np.empty(shape if path is None else 0, np.float32)

    def read(self, start: int, stop: int) -> Tensor:
        """Return a copy of some rows."""
        return self.read_window(Window(start, stop, 0, self.shape[1]))

    def read_window(self, window: Window) -> Tensor:
        """Return a copy of a window."""
        if window.top == window.bottom:
            return torch.empty(0, *self.shape[1:])
        rows = self._mapped(window.top, window.bottom, 'r')
        return torch.from_numpy(np.array(rows[:, window.left : window.right]))

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrite some rows."""
        self._mapped(start, start + len(rows), 'r+')[:] = rows.cpu().numpy()

    def _mapped(self, start: int, stop: int, mode: str) -> np.ndarray:
        if self.path is None:
            return self.array[start:stop]
        return map_rows(self.path, np.dtype(np.float32), self.shape, start, stop, mode)


def map_rows(
    path: Path, dtype: np.dtype, shape: Sequence[int], start: int, stop: int, mode: str
) -> np.ndarray:
    """Map some rows of an array of this shape in a file, to read (``r``) or to write (``r+``)."""
    offset = start * int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    return np.memmap(str(path), dtype, mode, offset, (stop - start, *shape[1:]))  # type: ignore[call-overload]


def reserve(path: Path, size: int) -> None:
    """Create a file with all of its space: writing to a mapped file on a full disk is fatal.

    Raises:
        OSError: If the disk has too little room. The file is gone then.
    """
    try:
        with path.open('wb') as file:
            if hasattr(os, 'posix_fallocate'):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


class TokenStore:
    """Keeps the tokens after the last complete layer, and those of each level.

    In memory, layers overwrite one array, and a level is a copy of it. In files, a layer reads one
    and writes another, so that an interrupted layer can be repeated.

    Args:
        shape (tuple[int, int, int]): Height and width of the grid, and width of the tokens.
        kept (Sequence[int]): After how many layers the tokens become a level, ascending.
        folder (Path, optional): Where the files go. Defaults to None: memory.
    """

    def __init__(
        self, shape: tuple[int, int, int], kept: Sequence[int], folder: Path | None = None
    ) -> None:
        self.shape, self.kept, self.folder = shape, kept, folder
        self.copies: dict[int, Rows] = {}
        if folder is None:
            self.rows = Rows(shape)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.state = folder / 'state.npz'

    def resume(self) -> tuple[int, dict[str, Tensor]]:
        """Return the number of complete layers, -1 before the stem, and the sums for the next."""
        if self.folder is None or not self.state.exists():
            return -1, {}
        with np.load(self.state, allow_pickle=False) as file:
            state = {name: torch.from_numpy(file[name]) for name in file}
        return int(state.pop('depth')), state

    def create(self, depth: int) -> Rows:
        """Return where the tokens after so many layers go, with all of its space reserved."""
        rows = self.open(depth)
        if rows.path is not None:
            reserve(rows.path, int(np.prod(self.shape, dtype=np.int64)) * 4)
        return rows

    def open(self, depth: int) -> Rows:
        """Return the tokens after so many layers."""
        if self.folder is None:
            return self.copies.get(depth, self.rows)
        return Rows(self.shape, self.folder / f'tokens_{depth}.f32')

    def finish(self, depth: int, sums: StatisticsSum | None) -> None:
        """Keep the tokens after so many layers if they are a level, and those of no other layer.

        Args:
            depth (int): How many layers are complete.
            sums (StatisticsSum, optional): Those for the next layer; None after the last one.
        """
        path = self.open(depth).path
        if path is None:
            if depth in self.kept and sums is not None:  # nothing overwrites the last ones
                self.copies[depth] = Rows(self.shape)
                self.copies[depth].array[:] = self.rows.array
            return
        with path.open('rb+') as file:
            os.fsync(file.fileno())
        state = {} if sums is None else {k: v.cpu().numpy() for k, v in sums.state().items()}
        with replacing(self.state) as unfinished, unfinished.open('wb') as file:
            np.savez(file, allow_pickle=False, depth=np.array(depth), **state)
        if depth - 1 not in self.kept and (before := self.open(depth - 1).path):
            before.unlink(missing_ok=True)

    def levels(self) -> list[Rows]:
        """Return the tokens of each level."""
        return [self.open(depth) for depth in self.kept]
