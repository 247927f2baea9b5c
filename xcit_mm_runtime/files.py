"""Writes files completely or not at all, even if a process is killed or the disk fills up."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np

from .errors import UserError

UNFINISHED = '.unfinished'


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it at the end if there was no error.

    At any moment, the file is either the complete old one or the complete new one.

    Args:
        path (str or PathLike): The file; its folder is created if it is missing.

    Yields:
        Path: Where to write it.

    Raises:
        OSError: If it could not be written. The old file is unchanged, and nothing else remains.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    is_written = False
    try:
        yield unfinished
        is_written = True
        with unfinished.open('rb+') as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        # The user knows the file by its own name. A write that fails names no file at all.
        if isinstance(error, OSError) and error.errno is not None:
            names_it = error.filename is None or str(error.filename) == str(unfinished)
            if is_written or names_it:
                raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_atomically(path: str | os.PathLike, content: bytes | str) -> None:
    """Write a file atomically; see :func:`replacing`.

    Args:
        path (str or PathLike): The file.
        content (bytes or str): Its content; text is written as UTF-8.

    Raises:
        OSError: If it could not be written. The old file is unchanged, and nothing else remains.
    """
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def write_png(path: str | os.PathLike, picture: np.ndarray) -> None:
    """Write a picture or labels as a PNG; see :func:`replacing`.

    Args:
        path (str or PathLike): The PNG.
        picture (np.ndarray): uint8 BGR (H, W, 3), or labels (H, W) of 8 or 16 bits.
    """
    write_atomically(path, cv2.imencode('.png', picture)[1].tobytes())


def check_writable(path: str | os.PathLike) -> None:
    """Raise if a file cannot be written, before the work that produces its content.

    Args:
        path (str or PathLike): The file, which is not changed; its folder is created.

    Raises:
        OSError: If it is a folder, or if nothing can be written next to it.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with suppress(_Enough), replacing(path) as unfinished:
        unfinished.write_bytes(b'test')
        raise _Enough  # so that it does not replace the file


def check_new(path: str | os.PathLike, force: bool, otherwise: str = '') -> None:
    """Raise if something would be overwritten that nobody asked to overwrite.

    Args:
        path (str or PathLike): A file or folder.
        force (bool): Whether the user gave ``--force``.
        otherwise (str): How to write elsewhere, such as ``--out-dir writes elsewhere``.

    Raises:
        UserError: If it exists.
    """
    if not force and os.path.lexists(path):
        other = f', {otherwise}' if otherwise else ''
        raise UserError(f'{path} already exists; --force overwrites it{other}.')


class _Enough(Exception):
    pass


def _sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, where folders can be opened."""
    if not hasattr(os, 'O_DIRECTORY'):
        return
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
