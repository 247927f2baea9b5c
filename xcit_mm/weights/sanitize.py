"""Removes from a checkpoint what mmengine would act on.

A file with only tensors and text can still do harm, because of what mmengine does with the text:

- ``Runner.resume`` runs the config in ``meta`` as Python, and so do inferencers without a config of
  their own. These texts are removed, so inferencers need a config.
- After ``resume``, mmengine's ``CheckpointHook`` deletes the file or folder that the checkpoint
  names as the best so far. Such a path is kept only if it is a ``best_*`` next to the checkpoint.
"""

import os
from pathlib import Path
from typing import Any

from .read import CheckpointError


def sanitize_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike) -> dict[str, Any]:
    """Make the content of a file safe to hand to mmengine.

    Args:
        checkpoint (dict): What :func:`read_checkpoint` returned; changed in place.
        path (str or PathLike): The file that it was read from.

    Returns:
        dict: The same checkpoint.

    Raises:
        CheckpointError: If a part does not have the type that mmengine and torch expect.
    """
    path = Path(path)
    meta = _part(checkpoint, 'meta', path)
    _part(meta, 'dataset_meta', path)
    runtime = _part(_part(checkpoint, 'message_hub', path), 'runtime_info', path)
    for texts, name in ((meta, 'config'), (meta, 'cfg'), (runtime, 'cfg')):
        texts.pop(name, None)
    for name in [key for key in runtime if str(key).startswith('best_ckpt')]:
        if not _is_best_beside(runtime[name], path):
            del runtime[name]
    steps = runtime.get('keep_ckpt_ids', [])
    if not isinstance(steps, list) or any(type(step) is not int for step in steps):
        del runtime['keep_ckpt_ids']
    state = _part(checkpoint, 'state_dict', path) if 'state_dict' in checkpoint else checkpoint
    if wrong := [name for name in state if not isinstance(name, str)]:
        raise CheckpointError(f'{path}: names of weights must be text, not {wrong[0]!r}')
    return checkpoint


def _part(whole: dict, name: str, path: Path) -> dict:
    part = whole.get(name, {})
    if not isinstance(part, dict):
        raise CheckpointError(f'{path}: {name} is a {type(part).__name__}, not a dict')
    return part


def _is_best_beside(best: Any, path: Path) -> bool:
    if not isinstance(best, str):
        return False
    found = Path(best)
    return found.name.startswith('best_') and found.resolve().parent == path.resolve().parent
