"""mmengine's own checkpoints under weights-only loading.

Obstacle: since torch 2.6 ``torch.load`` unpickles nothing but tensors and plain containers.
mmengine's checkpoints also hold the history of the logged values: ``HistoryBuffer`` objects, numpy
arrays and numpy scalars. So ``resume`` and ``test`` refuse what ``train`` wrote.

What this does: adds exactly those classes to torch's allow-list. Unpickling stays off. A
``HistoryBuffer`` also refers to four of its own methods, which pickle spells as calls of the
builtin ``getattr``. That builtin would let a file reach any attribute of any allowed class, so it
is not allowed: its name is bound to a function that knows these four methods and nothing else.
"""

from collections.abc import Callable

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

HISTORY_METHODS = ('min', 'max', 'current', 'mean')


def history_method(owner: object, name: str) -> Callable:
    """Stands in for ``getattr`` while a checkpoint is read.

    Args:
        owner (object): Must be the class ``HistoryBuffer``.
        name (str): One of its four statistics.
    """
    if owner is not HistoryBuffer or name not in HISTORY_METHODS:
        raise ValueError(
            f'the checkpoint asks for the attribute {name!r} of {owner!r}; only '
            f'{", ".join(HISTORY_METHODS)} of HistoryBuffer are allowed'
        )
    return getattr(HistoryBuffer, name)


def safe_globals() -> list:
    """The classes, and names that stand for them, that mmengine's checkpoints hold."""
    # numpy renamed its core in 2.0, and files written with either version are around.
    scalar = np.float64(0).__reduce__()[0]
    reconstruct = np.empty(0).__reduce__()[0]
    numpy_names = [
        (function, f'{package}.multiarray.{name}')
        for package in ('numpy.core', 'numpy._core')
        for function, name in ((scalar, 'scalar'), (reconstruct, '_reconstruct'))
    ]
    dtypes = [type(np.dtype(code)) for code in '?bBhHiIlLqQefd']
    return [
        HistoryBuffer,
        (history_method, 'builtins.getattr'),
        (history_method, '__builtin__.getattr'),
        *numpy_names,
        np.ndarray,
        np.dtype,
        *dict.fromkeys(dtypes),
    ]


def apply() -> None:
    """Add the classes to torch's allow-list."""
    torch.serialization.add_safe_globals(safe_globals())
