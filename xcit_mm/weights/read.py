"""Reads weight files without running anything in them."""

import io
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import UserError
from .unpickler import ExcessError, SafeUnpickler, UnsafeNameError, check_key

LEGACY_START = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)


class CheckpointError(UserError, RuntimeError):
    """A file that cannot be read as a checkpoint."""


class UnsafeCheckpointError(CheckpointError):
    """A file that would run code if it were unpickled. It was not unpickled."""


def read_checkpoint(path: str | os.PathLike, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a torch or safetensors file.

    Nothing in it is run. Reading takes as much memory as the file has bytes, plus an amount that
    :mod:`.unpickler` limits.

    Args:
        path (str or PathLike): The file.
        map_location: The device of the tensors, ``cpu`` unless it is text or a ``torch.device``.
            With ``meta``, only their shapes are read: all else that the file contains, in no time.
            Defaults to ``cpu``.

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
    device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
    try:
        content = _read(path, str(device))
    except CheckpointError:
        raise
    except UnsafeNameError as error:
        raise UnsafeCheckpointError(
            f'{path} was refused: it contains Python objects other than tensors and plain values '
            f'({error}), and reading those could run code. Nothing in it was run. If you trust its '
            'origin, load it with the program that wrote it and save only its state dict.'
        ) from None
    except ExcessError as error:
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


def _read(path: Path, device: str) -> Any:
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

            return {name: tensor.to(device) for name, tensor in load_file(path).items()}
        if head[:2] == b'PK':
            read = _read_zip
        elif head == LEGACY_START:
            read = _read_legacy
        else:
            raise CheckpointError(f'{path} is neither a torch checkpoint nor a safetensors file')
        content, tensors = read(file, path.stat().st_size, 'meta' if device == 'meta' else 'cpu')
    for tensor in tensors if device not in ('cpu', 'meta') else ():
        tensor.data = tensor.data.to(device)
    return content


def _read_zip(file: BinaryIO, size: int, device: str) -> tuple[Any, list[Tensor]]:
    """Read what torch.save writes since 1.6: an archive of a pickle and uncompressed storages."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in entries if name.endswith('/data.pkl')]
        if len(pickles) != 1 or len(entries) != len(archive.infolist()):
            raise ValueError('a zip archive, but torch.save did not write it')
    claimed = sum(entry.file_size for entry in entries.values())
    if claimed > size:
        raise ExcessError(f'it has {size} bytes but claims to unpack to {claimed}')
    folder = pickles[0].removesuffix('data.pkl')

    def find(name: str) -> int:
        """Go to the content of an entry; return its size."""
        entry = entries[folder + name]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError('it is compressed, so torch.save did not write it')
        file.seek(entry.header_offset + 26)
        name_length, extra_length = struct.unpack('<HH', file.read(4))
        file.seek(name_length + extra_length, io.SEEK_CUR)
        return entry.file_size

    if f'{folder}byteorder' in entries and file.read(find('byteorder')) != sys.byteorder.encode():
        raise ValueError('it was written on a machine with another order of bytes')
    unpickler = SafeUnpickler(io.BytesIO(file.read(find('data.pkl'))), size, device)
    content = unpickler.load()
    for key, storage in unpickler.storages.items():
        if find(f'data/{key}') < len(storage.data):
            raise ValueError('a storage is smaller than its tensors')
        _fill(storage.data, file)
    return content, unpickler.tensors


def _read_legacy(file: BinaryIO, size: int, device: str) -> tuple[Any, list[Tensor]]:
    """Read what torch.save wrote before 1.6: five pickles, then the storages."""
    file.seek(0)
    unpickler = SafeUnpickler(file, size, device)
    _, _, _, content, keys = [unpickler.load() for _ in range(5)]
    missing = dict(unpickler.storages)
    for key in keys:
        storage = missing.pop(check_key(key))
        (numel,) = struct.unpack('<q', file.read(8))
        if numel * storage.dtype.itemsize != len(storage.data):
            raise ValueError('a storage is not as large as its tensors')
        _fill(storage.data, file)
    if missing:
        raise ValueError('a storage is missing')
    return content, unpickler.tensors


def _fill(data: Tensor, file: BinaryIO) -> None:
    if data.is_meta:
        file.seek(len(data), io.SEEK_CUR)
    elif file.readinto(data.numpy()) != len(data):  # type: ignore[attr-defined]
        raise ValueError('it ends too early')
