"""Reads weight files without running anything that is in them."""

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file

# What zip entries may claim over what the file holds; torch stores them uncompressed.
MAX_EXPANSION = 2


class CheckpointError(RuntimeError):
    """A file that cannot be read as a checkpoint."""


class UnsafeCheckpointError(CheckpointError):
    """A file that would run code if it were unpickled. It was not."""


def read_checkpoint(path: str | os.PathLike, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a torch or safetensors file, told apart by their content.

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
    with path.open('rb') as file:
        head = file.read(16)
    try:
        if head[8:9] == b'{':
            device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
            return load_file(path, device=str(device or 'cpu'))
        if head[:2] == b'PK':
            _check_zip(path)
        content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise _explain(path, error) from None
    except CheckpointError:
        raise
    except safetensors.SafetensorError as error:
        raise CheckpointError(f'{path} is not a whole safetensors file: {error}') from None
    except MemoryError:
        raise CheckpointError(f'{path} asks for more memory than there is') from None
    except Exception as error:  # a damaged pickle can raise anything
        first_line = (str(error).splitlines() or [''])[0]
        raise CheckpointError(
            f'{path} ({path.stat().st_size} bytes) is damaged or not a checkpoint: '
            f'{type(error).__name__}: {first_line}'
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f'{path} holds a {type(content).__name__}, not a dict of weights')
    return content


def _check_zip(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise CheckpointError(f'{path} is cut off or damaged: {error}') from None
    size = path.stat().st_size
    if claimed > MAX_EXPANSION * size + 2**20:
        raise CheckpointError(
            f'{path} has {size} bytes but claims {claimed} when unpacked; it was not unpacked'
        )


def _explain(path: Path, error: pickle.UnpicklingError) -> CheckpointError:
    message = str(error)
    match = re.search(r'(?:GLOBAL|global:?|class|type) ([\w.]+\.[\w.]+)', message)
    if match or 'Unsupported' in message or 'blocked' in message:
        name = f' ({match[1]})' if match else ''
        return UnsafeCheckpointError(
            f'{path} was refused: it holds Python objects other than tensors and plain values'
            f'{name}, and reading those could run code. Nothing of it was run. If you trust its '
            'origin, load it with the program that made it and save its state dict alone.'
        )
    return CheckpointError(f'{path} is damaged or not a checkpoint: {message.splitlines()[-1]}')
