"""mmengine's own checkpoints under weights-only loading.

Obstacle: since torch 2.6, ``torch.load`` reads only tensors and plain containers. mmengine's
checkpoints also contain the history of the logged values: ``HistoryBuffer`` objects, numpy arrays
and numpy scalars. So ``resume`` and ``test`` refuse what ``train`` wrote.

What this does: adds those names to torch's allow-list. Each is bound to a stand-in that builds
exactly what such a checkpoint contains and refuses the rest. Unpickling stays off. The real classes
would let a file do more: the builtin ``getattr``, by which pickle names the methods of a
``HistoryBuffer``, reaches any attribute of any allowed class, and numpy's ``__setstate__`` trusts
the file with the layout of memory.

A fork of mmengine that brings an allow-list of its own is left alone: torch keeps one entry per
name, and stand-ins for some names do not work with the real classes for others.
"""

import math
import re
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint
from mmengine.utils import digit_version

NUMBER_CODE = re.compile(r'[?bhilqBHILQefd]|b1|[iu][1248]|f[248]')


def no_attribute(*_: Any) -> None:
    """Stand in for ``getattr``: a ``HistoryBuffer`` gets its methods from its class."""


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
            raise ValueError('it contains a numpy array of something other than numbers')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        _, order, *layout = state
        if order not in ('<', '>', '=', '|') or layout != [None, None, None, -1, -1, 0]:
            raise ValueError('it contains a numpy type with a custom layout')
        self.dtype = self.dtype.newbyteorder(order)


class Numbers(np.ndarray):
    """Stands in for ``numpy.ndarray``, and is pickled as one."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, NumberType) or not isinstance(content, bytes):
            raise ValueError('it contains a numpy array of something other than numbers')
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise ValueError('a numpy array does not have the size it claims')
        super().__setstate__((1, shape, kind.dtype, fortran, content))

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


def empty_array(kind: object, shape: tuple, _: bytes) -> Numbers:
    """Stand in for numpy's ``_reconstruct``, which builds an array before its state is set."""
    if kind is not Numbers or shape != (0,):
        raise ValueError('it builds a numpy array in an unknown way')
    return Numbers(0)


def number(kind: NumberType, content: bytes) -> np.generic:
    """Stand in for numpy's ``scalar``."""
    if not isinstance(kind, NumberType) or len(content) != kind.dtype.itemsize:
        raise ValueError('it contains a numpy scalar that is not a number')
    return np.frombuffer(content, kind.dtype)[0]


# The names in mmengine's checkpoints. numpy renamed its core in 2.0; both are in use.
STAND_INS: dict[str, Any] = {
    'mmengine.logging.history_buffer.HistoryBuffer': History,
    'builtins.getattr': no_attribute,
    'numpy.core.multiarray.scalar': number,
    'numpy._core.multiarray.scalar': number,
    'numpy.core.multiarray._reconstruct': empty_array,
    'numpy._core.multiarray._reconstruct': empty_array,
    'numpy.ndarray': Numbers,
    'numpy.dtype': NumberType,
}


def apply() -> None:
    """Add the names to torch's allow-list, where they are needed and nobody else does."""
    if digit_version(torch.__version__) < digit_version('2.6'):
        return  # torch.load is not weights-only by default
    if not hasattr(checkpoint, 'get_torch_safe_globals'):
        torch.serialization.add_safe_globals([(value, name) for name, value in STAND_INS.items()])
