"""Where the tokens of a large image live: in memory or in files."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.files import replacing

from ..models.fast import StatisticsSum


class Rows:
    """An array in memory or in a file, of which only a few rows are mapped at a time.

    A file that is mapped as a whole would count as memory of the process, page by page.

    Args:
        shape (Sequence[int]): Its shape, such as height and width of the grid, and width of tokens.
        path (Path, optional): The file. Defaults to None: memory.
        dtype (np.dtype): Its type. Defaults to float32.
    """

    def __init__(
        self, shape: Sequence[int], path: Path | None = None, dtype: Any = np.float32
    ) -> None:
        self.shape, self.path, self.dtype = tuple(shape), path, np.dtype(dtype)
        self.array = np.empty(shape if path is None else 0, dtype)

    def reserve(self) -> None:
        """Create the file with all of its space: writing to a mapped file on a full disk is fatal.

        Raises:
            OSError: If the disk has too little room. The file is gone then.
        """
        if self.path is None:
            return
        size = math.prod(self.shape) * self.dtype.itemsize
        try:
            with self.path.open('wb') as file:
                if hasattr(os, 'posix_fallocate'):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def map(self, start: int, stop: int, mode: str = 'r') -> np.ndarray:
        """Return some rows, to read (``r``) or to write (``r+``)."""
        if self.path is None or start == stop:
            return self.array[start:stop].reshape(-1, *self.shape[1:])
        offset = start * math.prod(self.shape[1:]) * self.dtype.itemsize
        shape = (stop - start, *self.shape[1:])
        return np.memmap(str(self.path), self.dtype, mode, offset, shape)  # type: ignore[call-overload]

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Tensor:
        """Return a copy of some rows, or of a window."""
        return torch.from_numpy(np.array(self.map(top, bottom)[:, left:right]))

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrite some rows."""
        self.map(start, start + len(rows), 'r+')[:] = rows.cpu().numpy()


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
        rows.reserve()
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
