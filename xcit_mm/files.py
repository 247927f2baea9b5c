"""Files that are whole or not there, whenever a process is killed or the disk fills up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = '.unfinished'


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file under another name; it gets its own name at the end, if there was no error.

    At any moment the name stands for the whole old file or the whole new one.

    Args:
        path (str or PathLike): The file; its folder is made if it is missing.

    Yields:
        Path: Where to write it.

    Raises:
        OSError: If it could not be written. The old file is as it was, and nothing is left over.
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
    """Write a file at once: see :func:`replacing`.

    Args:
        path (str or PathLike): The file.
        content (bytes or str): What it is to hold; text is written as UTF-8.

    Raises:
        OSError: If it could not be written. The old file is as it was, and nothing is left over.
    """
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, where folders can be opened."""
    if not hasattr(os, 'O_DIRECTORY'):
        return
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
