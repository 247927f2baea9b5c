"""Reads weight files without running anything that is in them."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file

from .scan import Excess, Scan, UnsafeName

LEGACY_START = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
# Far more than the names, shapes and histories of any checkpoint take.
MAX_PICKLE_BYTES = 2**29


class CheckpointError(RuntimeError):
    """A file that cannot be read as a checkpoint."""


class UnsafeCheckpointError(CheckpointError):
    """A file that would run code if it were unpickled. It was not."""


def read_checkpoint(path: str | os.PathLike, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a torch or safetensors file.

    Nothing in it is run. It takes as much memory as it has bytes, and a share that :mod:`.scan`
    bounds.

    Args:
        path (str or PathLike): The file.
        map_location: As for ``torch.load``. Defaults to ``cpu``.

    Returns:
        dict: What the file holds: a state dict, or a checkpoint with one in it.

    Raises:
        FileNotFoundError: If there is none.
        UnsafeCheckpointError: If it holds objects other than tensors and plain values.
        CheckpointError: If it is damaged or no checkpoint.
    """
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
        raise CheckpointError(f'{path} is not a whole safetensors file: {error}') from None
    except MemoryError:
        raise CheckpointError(f'{path} asks for more memory than there is') from None
    except Exception as error:  # a damaged file can raise anything
        first_line = (str(error).splitlines() or [''])[0]
        raise CheckpointError(
            f'{path} ({path.stat().st_size} bytes) is damaged or not a checkpoint: '
            f'{type(error).__name__}: {first_line}'
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f'{path} holds a {type(content).__name__}, not a dict of weights')
    return content


def _read(path: Path, map_location: Any) -> Any:
    with path.open('rb') as file:
        head = file.read(len(LEGACY_START))
    is_safetensors = head[8:9] == b'{'
    if is_safetensors != (path.suffix == '.safetensors'):
        raise CheckpointError(
            f'{path} is {"a" if is_safetensors else "no"} safetensors file, whatever its name '
            'says. If that is right, rename it.'
        )
    if is_safetensors:
        device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
        return load_file(path, device=str(device))
    if head[:2] == b'PK':
        _scan_zip(path)
    elif head == LEGACY_START:
        _scan_legacy(path)
    else:
        raise CheckpointError(f'{path} is no checkpoint: neither of torch.save nor safetensors')
    return torch.load(path, map_location=map_location, weights_only=True)


def _scan_zip(path: Path) -> None:
    """The format of torch.save since 1.6: an archive of a pickle and the storages, as they are."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        if claimed > size:
            raise Excess(f'it has {size} bytes but claims {claimed} when unpacked')
        pickles = [entry for entry in entries if entry.filename.endswith('/data.pkl')]
        if len(pickles) != 1 or len({entry.filename for entry in entries}) != len(entries):
            raise ValueError('a zip archive, but not one that torch.save made')
        if pickles[0].file_size > MAX_PICKLE_BYTES:
            raise Excess(f'it describes its tensors in {pickles[0].file_size} bytes')
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
        f'{path} was refused: it holds Python objects other than tensors and plain values '
        f'({name}), and reading those could run code. Nothing of it was run. If you trust its '
        'origin, load it with the program that made it and save its state dict alone.'
    )
