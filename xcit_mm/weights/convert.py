"""Any published format to a clean safetensors file."""

import os
from pathlib import Path

import torch
from mmengine.runner.checkpoint import CheckpointLoader
from safetensors.torch import save_file

from ..files import replacing
from ..tables import format_table
from .formats import recognise, structure, unwrap


def convert(source: str, target: str | os.PathLike, overwrite: bool = False) -> str:
    """Read weights, give them this project's names and write them.

    Args:
        source (str): A path, a web address, ``xcit://NAME`` or ``timm://NAME``.
        target (str or PathLike): The ``.safetensors`` file.
        overwrite (bool): Whether an existing target is replaced. Defaults to False.

    Returns:
        str: A report: the format recognised and a table of what was done.
    """
    target = Path(target)
    if target.suffix != '.safetensors':
        raise ValueError(f'the output must end in .safetensors, not {target.name!r}')
    if target.exists() and not overwrite:
        raise FileExistsError(f'{target} exists already; --force overwrites it')
    checkpoint = CheckpointLoader.load_checkpoint(source, map_location='cpu', logger='silent')
    recognised = recognise(unwrap(checkpoint))
    if recognised is None:
        raise ValueError(f'{source} holds no XCiT in a known format')
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in recognised.state.items()
    }
    sizes = structure(recognised.state)
    metadata = {'format': 'pt', 'source_format': recognised.format}
    with replacing(target) as unfinished:
        save_file(tensors, unfinished, {**metadata, **{k: str(v) for k, v in sizes.items()}})
    dropped = [name for name, value in recognised.others.items() if torch.is_tensor(value)]
    rows = _summary(tensors, 'written') + _summary(dict.fromkeys(dropped), 'left out')
    described = ', '.join(f'{name} {value}' for name, value in sizes.items())
    return (
        f'Recognised the format "{recognised.format}": {described}\n\n{format_table(rows)}\n\n'
        f'{len(tensors)} tensors written to {target} ({target.stat().st_size / 1e6:.1f} MB)'
    )


def _summary(tensors: dict, what: str) -> list[dict]:
    groups: dict[str, list] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.split('.')[0], []).append(tensor)
    return [
        {
            'part': part,
            'tensors': len(members),
            'numbers': sum(t.numel() for t in members if t is not None) or None,
            'what': what,
        }
        for part, members in groups.items()
    ]
