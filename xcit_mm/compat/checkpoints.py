"""mmengine's own checkpoints under weights-only loading.

Obstacle: since torch 2.6, ``torch.load`` reads only tensors and plain containers. mmengine's
checkpoints also contain the history of the logged values: ``HistoryBuffer`` objects, numpy arrays
and numpy scalars. So ``resume`` and ``test`` refuse what ``train`` wrote.

What this does: adds those names to torch's allow-list. Each is bound to a stand-in that builds
exactly what such a checkpoint contains and refuses the rest. Unpickling stays off. The real classes
would let a file do more: the builtin ``getattr``, by which pickle names the methods of a
``HistoryBuffer``, reaches any attribute of any allowed class, and numpy's ``__setstate__`` trusts
the file with the layout of memory.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

HISTORY_METHODS = ('min', 'max', 'current', 'mean')
NUMBER_CODE = re.compile(r'[?bhilqBHILQefd]|b1|[iu][1248]|f[248]')


def history_method(owner: object, name: str) -> Callable:
    """Stands in for ``getattr``.

    Args:
        owner (object): Must be the class ``HistoryBuffer``.
        name (str): One of its four statistics.
    """
    if owner not in (History, HistoryBuffer) or name not in HISTORY_METHODS:
        raise ValueError(
            f'the checkpoint asks for the attribute {name!r} of {owner!r}; only '
            f'{", ".join(HISTORY_METHODS)} of HistoryBuffer are allowed'
        )
    return getattr(HistoryBuffer, name)


class History(HistoryBuffer):
    """Stands in for ``HistoryBuffer``, and becomes one when its state is set."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        values, counts = state['_log_history'], state['_count_history']
        length = state['max_length']
        if not (isinstance(values, Numbers) and isinstance(counts, Numbers)):
            raise ValueError('a HistoryBuffer contains something other than numbers')
        if values.ndim != 1 or values.shape != counts.shape or type(length) is not int:
            raise ValueError('the parts of a HistoryBuffer do not match')
        HistoryBuffer.__init__(self, np.array(values), np.array(counts), length)
        self.__class__ = HistoryBuffer


class NumberType:
    """Stands in for ``numpy.dtype``: a type of real numbers.

    Args:
        code (str): As numpy writes it: ``f8``.
    """

    def __init__(self, code: str, *_: bool) -> None:
        if not NUMBER_CODE.fullmatch(code):
            raise ValueError(f'the checkpoint contains a numpy array of {code!r}, not of numbers')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        _, order, *layout = state
        if order not in ('<', '>', '=', '|') or layout != [None, None, None, -1, -1, 0]:
            raise ValueError('the checkpoint contains a numpy type with a custom layout')
        self.dtype = self.dtype.newbyteorder(order)


class Numbers(np.ndarray):
    """Stands in for ``numpy.ndarray``, and is pickled as one."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, NumberType) or not isinstance(content, bytes):
            raise ValueError(
                'the checkpoint contains a numpy array of something other than numbers'
            )
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise ValueError('a numpy array in the checkpoint does not have the size it claims')
        super().__setstate__((1, shape, kind.dtype, fortran, content))

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


def empty_array(kind: object, shape: tuple, _: bytes) -> Numbers:
    """Stands in for numpy's ``_reconstruct``, which builds an array before its state is set."""
    if kind is not Numbers or shape != (0,):
        raise ValueError('the checkpoint builds a numpy array in an unknown way')
    return Numbers(0)


def number(kind: NumberType, content: bytes) -> np.generic:
    """Stands in for numpy's ``scalar``."""
    if not isinstance(kind, NumberType) or len(content) != kind.dtype.itemsize:
        raise ValueError('the checkpoint contains a numpy scalar that is not a number')
    return np.frombuffer(content, kind.dtype)[0]


def safe_globals() -> list:
    """The names in mmengine's checkpoints, each with its stand-in."""
    # numpy renamed its core in 2.0, and files from both versions are in use.
    numpy_names = [
        (function, f'{package}.multiarray.{name}')
        for package in ('numpy.core', 'numpy._core')
        for function, name in ((number, 'scalar'), (empty_array, '_reconstruct'))
    ]
    return [
        (History, 'mmengine.logging.history_buffer.HistoryBuffer'),
        (history_method, 'builtins.getattr'),
        *numpy_names,
        (Numbers, 'numpy.ndarray'),
        (NumberType, 'numpy.dtype'),
    ]


def apply() -> None:
    """Add the names to torch's allow-list."""
    torch.serialization.add_safe_globals(safe_globals())
