"""Converts any published format to a clean safetensors file."""

import os
from pathlib import Path

import torch

from xcit_mm_runtime.files import check_new, replacing

from ..tables import format_table
from .formats import recognize, structure, unwrap
from .sources import read_weights

# Where a checkpoint of pre-training says what it is, in its ``meta``.
DESCRIPTION = 'xcit_mm'


def convert(source: str, target: str | os.PathLike, overwrite: bool = False) -> str:
    """Read weights, rename them to this project's names and write them.

    Args:
        source (str): A path, a web address, ``xcit://NAME`` or ``timm://NAME``.
        target (str or PathLike): The ``.safetensors`` file.
        overwrite (bool): Whether to replace an existing target. Defaults to False.

    Returns:
        str: A report: the recognized format and a table of what was written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    target = Path(target)
    if target.suffix != '.safetensors':
        raise ValueError(f'the output must end in .safetensors, not {target.name!r}')
    check_new(target, overwrite)
    content = read_weights(source)
    recognized = recognize(unwrap(content))
    if recognized is None:
        raise ValueError(f'{source} contains no XCiT in a known format')
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in recognized.state.items()
    }
    sizes = structure(recognized.state)
    metadata = {'format': 'pt', 'source_format': recognized.format}
    origin = _origin(content)
    if origin:
        metadata['trained_as'] = origin
    metadata |= {k: str(v) for k, v in sizes.items()}
    with replacing(target) as unfinished:
        try:
            save_file(tensors, unfinished, metadata)
        except SafetensorError as error:
            raise OSError(
                f'{target} could not be written: {error}. Free some space, or write elsewhere.'
            ) from error
    dropped = [name for name, value in recognized.others.items() if torch.is_tensor(value)]
    rows = _summary(tensors, 'written') + _summary(dict.fromkeys(dropped), 'left out')
    described = ', '.join(f'{name} {value}' for name, value in sizes.items())
    found = f'Recognized the format "{recognized.format}"'
    found += f', trained as {origin}' if origin else ''
    return (
        f'{found}: {described}\n\n{format_table(rows)}\n\n'
        f'{len(tensors)} tensors written to {target} ({target.stat().st_size / 1e6:.1f} MB)'
    )


def _origin(content: dict) -> str:
    """Return the model as which a checkpoint of our own was trained, or an empty text."""
    described = content.get('meta', {}).get(DESCRIPTION)
    trained_as = described.get('trained_as') if isinstance(described, dict) else None
    return trained_as if isinstance(trained_as, str) else ''


def _summary(tensors: dict, what: str) -> list[dict]:
    """Return a row of the report for each part of the network."""
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
