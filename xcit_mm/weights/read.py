"""Reads weight files without running anything in them."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from .scan import Excess, Scan, UnsafeName

LEGACY_START = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
# Far more than the names, shapes and histories of any checkpoint need.
MAX_PICKLE_BYTES = 2**29


class CheckpointError(UserError, RuntimeError):
    """A file that cannot be read as a checkpoint."""


class UnsafeCheckpointError(CheckpointError):
    """A file that would run code if it were unpickled. It was not unpickled."""


def read_checkpoint(path: str | os.PathLike, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a torch or safetensors file.

    Nothing in it is run. Reading takes as much memory as the file has bytes, plus an amount that
    :mod:`.scan` limits.

    Args:
        path (str or PathLike): The file.
        map_location: As for ``torch.load``. Defaults to ``cpu``.

    Returns:
        dict: The content of the file: a state dict, or a checkpoint that contains one.

    Raises:
        FileNotFoundError: If there is no such file.
        UnsafeCheckpointError: If it contains objects other than tensors and plain values.
        CheckpointError: If it is damaged or not a checkpoint.
    """
    import safetensors

    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'there is no checkpoint {path}')
    try:
        content = _read(path, map_location)
    except CheckpointError:
        raise
    except UnsafeName as error:
        raise _unsafe(path, str(error)) from None
    except pickle.UnpicklingError as error:
        raise _unsafe(path, str(error).splitlines()[-1]) from None
    except Excess as error:
        raise CheckpointError(f'{path} was not read: {error}') from None
    except safetensors.SafetensorError as error:
        raise CheckpointError(f'{path} is not a complete safetensors file: {error}') from None
    except MemoryError:
        raise CheckpointError(f'{path} needs more memory than there is') from None
    except Exception as error:  # a damaged file can raise anything
        first_line = (str(error).splitlines() or [''])[0]
        raise CheckpointError(
            f'{path} ({path.stat().st_size} bytes) is damaged or not a checkpoint: '
            f'{type(error).__name__}: {first_line}'
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f'{path} contains a {type(content).__name__}, not a dict of weights')
    return content


def _read(path: Path, map_location: Any) -> Any:
    with path.open('rb') as file:
        head = file.read(len(LEGACY_START))
    is_safetensors = head[8:9] == b'{'
    if is_safetensors != (path.suffix == '.safetensors'):
        raise CheckpointError(
            f'{path} is {"a" if is_safetensors else "not a"} safetensors file, contrary to its '
            'name. If that is intended, rename it.'
        )
    if is_safetensors:
        from safetensors.torch import load_file

        device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
        return load_file(path, device=str(device))
    if head[:2] == b'PK':
        _scan_zip(path)
    elif head == LEGACY_START:
        _scan_legacy(path)
    else:
        raise CheckpointError(f'{path} is neither a torch checkpoint nor a safetensors file')
    return torch.load(path, map_location=map_location, weights_only=True)


def _scan_zip(path: Path) -> None:
    """The format of torch.save since 1.6: an archive of a pickle and uncompressed storages."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        if claimed > size:
            raise Excess(f'it has {size} bytes but claims to unpack to {claimed}')
        pickles = [entry for entry in entries if entry.filename.endswith('/data.pkl')]
        if len(pickles) != 1 or len({entry.filename for entry in entries}) != len(entries):
            raise ValueError('a zip archive, but torch.save did not write it')
        if pickles[0].file_size > MAX_PICKLE_BYTES:
            raise Excess(f'the description of its tensors takes {pickles[0].file_size} bytes')
        content = archive.read(pickles[0])
    Scan(size, len(content)).run(io.BytesIO(content))


def _scan_legacy(path: Path) -> None:
    """The format of torch.save before 1.6: five pickles, then the storages."""
    size = path.stat().st_size
    scan = Scan(size, min(size, MAX_PICKLE_BYTES))
    with path.open('rb') as file:
        for _ in range(5):
            scan.run(file)


def _unsafe(path: Path, name: str) -> UnsafeCheckpointError:
    return UnsafeCheckpointError(
        f'{path} was refused: it contains Python objects other than tensors and plain values '
        f'({name}), and reading those could run code. Nothing in it was run. If you trust its '
        'origin, load it with the program that wrote it and save only its state dict.'
    )
