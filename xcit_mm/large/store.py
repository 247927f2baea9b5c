"""Where the tokens of a large image live: in memory or in files."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.files import replacing

from .plan import check_disk
from .rows import Statistics
from .windows import Window

STATE = 'state.npz'


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
        self.array = np.empty(shape, np.float32) if path is None else None

    def copy(self) -> 'Rows':
        """Another array in memory with the same tokens."""
        copy = Rows(self.shape)
        if copy.array is not None:
            copy.array[:] = self._mapped(0, self.shape[0], 'r')
        return copy

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of some rows."""
        return self.read_window(Window(start, stop, 0, self.shape[1]))

    def read_window(self, window: Window) -> Tensor:
        """A copy of a window."""
        if window.top == window.bottom:
            return torch.empty(0, *self.shape[1:])
        rows = self._mapped(window.top, window.bottom, 'r')
        return torch.from_numpy(np.array(rows[:, window.left : window.right]))

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrite some rows."""
        self._mapped(start, start + len(rows), 'r+')[:] = rows.cpu().numpy()

    def _mapped(self, start: int, stop: int, mode: str) -> np.ndarray:
        if self.array is not None:
            return self.array[start:stop]
        _, width, dims = self.shape
        offset = start * width * dims * np.float32().itemsize
        shape = (stop - start, width, dims)
        return np.memmap(str(self.path), np.float32, mode, offset, shape)  # type: ignore[call-overload]


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


class Memory:
    """Keeps the tokens in memory: one array that layers overwrite, and a copy for each level."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.rows = Rows(shape)
        self.kept: dict[int, Rows] = {}

    def resume(self) -> tuple[int, dict[str, np.ndarray]]:
        """Nothing was done before."""
        return -1, {}

    def create(self, depth: int) -> Rows:
        """Where the tokens after so many layers go."""
        return self.rows

    open = create

    def finish(self, depth: int, statistics: Statistics | None, obsolete: int | None) -> None:
        """The next layer may overwrite them."""

    def keep(self, depth: int) -> None:
        """Keep a copy of the tokens after so many layers for a level."""
        self.kept[depth] = self.rows.copy()

    def open_kept(self, depth: int) -> Rows:
        """What was kept; nothing overwrites the tokens after the last layer."""
        return self.kept.get(depth, self.rows)


class Files:
    """Keeps the tokens in files: those of the last complete layer, and those of each level.

    Args:
        shape (tuple[int, int, int]): Height and width of the grid, and width of the tokens.
        folder (Path): Where the files go.
        num_levels (int): Number of levels.
    """

    def __init__(self, shape: tuple[int, int, int], folder: Path, num_levels: int) -> None:
        self.shape = shape
        self.folder = folder
        self.bytes = int(np.prod(shape, dtype=np.int64)) * 4
        folder.mkdir(parents=True, exist_ok=True)
        present = sum(path.stat().st_size for path in folder.glob('tokens_*.f32'))
        # All levels but the last, and the two files between which a layer works.
        check_disk(folder, (num_levels + 1) * self.bytes - present)

    def _path(self, depth: int) -> Path:
        return self.folder / f'tokens_{depth}.f32'

    def resume(self) -> tuple[int, dict[str, np.ndarray]]:
        """The number of complete layers, -1 before the stem, and the sums for the next one."""
        path = self.folder / STATE
        if not path.exists():
            return -1, {}
        with np.load(path, allow_pickle=False) as file:
            state = dict(file)
        return int(state.pop('depth')), state

    def create(self, depth: int) -> Rows:
        """A file for the tokens after so many layers, with all of its space reserved."""
        reserve(self._path(depth), self.bytes)
        return self.open(depth)

    def open(self, depth: int) -> Rows:
        """The tokens after so many layers."""
        return Rows(self.shape, self._path(depth))

    def finish(self, depth: int, statistics: Statistics | None, obsolete: int | None) -> None:
        """Record that a layer is complete, and delete the tokens before it if they are obsolete."""
        with self._path(depth).open('rb+') as file:
            os.fsync(file.fileno())
        state = {} if statistics is None else statistics.state()
        with replacing(self.folder / STATE) as unfinished, unfinished.open('wb') as file:
            np.savez(file, allow_pickle=False, **{**state, 'depth': np.array(depth)})
        if obsolete is not None:
            self._path(obsolete).unlink(missing_ok=True)

    def keep(self, depth: int) -> None:
        """The file stays as it is."""

    open_kept = open
