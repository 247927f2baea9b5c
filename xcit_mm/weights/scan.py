"""Inspects a checkpoint's pickle before anything is built from it.

torch's weights-only unpickler runs no code, but it builds whatever a file asks for. A few bytes can
ask for a ``bytearray`` of any size, copy one long list a million times, present a small storage as
a huge tensor, or nest tuples until hashing one overflows the stack and ends the interpreter. Here
the same opcodes run with only sizes on the stack. torch then reads what passes.
"""

import math
import pickletools
from typing import Any, BinaryIO

from .names import NAMED_ONLY, STORAGES, called_names

CONSTANTS = {
    'NONE', 'NEWTRUE', 'NEWFALSE', 'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT',
    'BINUNICODE', 'SHORT_BINSTRING',
}  # fmt: skip
TUPLES = ('EMPTY_TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3')

MAX_TUPLE_DEPTH = 100
# Memory for Python objects: this much per byte of the pickle, plus a fixed amount, up to a limit.
BYTES_PER_BYTE, SPARE_BYTES, MAX_BYTES = 32, 2**26, 2**32
OBJECT_BYTES = 64
# Several tensors may share a storage: tied weights.
MAX_VIEWS = 4


class UnsafeName(Exception):
    """A pickle that names something that is not allowed."""


class Excess(Exception):
    """A pickle that claims or builds more than its file can contain."""


class _Global(str):
    """A function or class."""


class _Tuple(tuple):
    """A tuple. Its weight is the cost of hashing it, which visits everything in it."""

    depth = weight = 1


class _Thing:
    """Anything else: its number of elements, and the bytes per element of a copy."""

    __slots__ = ('itemsize', 'length')

    def __init__(self, length: int, itemsize: int) -> None:
        self.length, self.itemsize = length, itemsize


class Scan:
    """Runs the opcodes of the pickles of one file.

    Args:
        file_bytes (int): The size of the file: the limit for all storages together.
        pickle_bytes (int): The size of the pickled part.
    """

    def __init__(self, file_bytes: int, pickle_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.budget = min(SPARE_BYTES + BYTES_PER_BYTE * pickle_bytes, MAX_BYTES)
        self.storages: set = set()
        self.claimed = self.shown = 0
        self.called = called_names()

    def run(self, file: BinaryIO) -> None:
        """Run one pickle, from the current position of the file to its end.

        Raises:
            UnsafeName: If it names something that is not allowed.
            Excess: If it claims or builds too much.
            Exception: Any kind, if it is damaged.
        """
        self.stack: list[Any] = []
        self.marks: list[list] = []
        self.memo: dict[int, Any] = {}
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == 'STOP':
                break
            self._step(opcode.name, argument)

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in CONSTANTS:
            stack.append(argument)
        elif name in ('BINPUT', 'LONG_BINPUT'):
            self.memo[argument] = stack[-1]
        elif name in ('BINGET', 'LONG_BINGET'):
            stack.append(self.memo[argument])
        elif name == 'GLOBAL':
            stack.append(self._global(argument))
        elif name == 'MARK':
            self._spend(OBJECT_BYTES)
            self.marks.append(stack)
            self.stack = []
        elif name in ('EMPTY_LIST', 'EMPTY_DICT', 'EMPTY_SET'):
            self._spend(OBJECT_BYTES)
            stack.append(_Thing(0, OBJECT_BYTES))
        elif name in ('APPENDS', 'SETITEMS'):
            self._fill(self._since_mark())
        elif name in ('APPEND', 'SETITEM'):
            self._fill([stack.pop() for _ in range(1 if name == 'APPEND' else 2)])
        elif name == 'TUPLE':
            items = self._since_mark()
            self.stack.append(self._tuple(items))
        elif name in TUPLES:
            count = TUPLES.index(name)
            items = [stack.pop() for _ in range(count)]
            stack.append(self._tuple(items[::-1]))
        elif name == 'BINPERSID':
            stack.append(self._storage(*stack.pop()))
        elif name in ('REDUCE', 'NEWOBJ'):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, arguments))
        elif name == 'BUILD':
            state = stack.pop()
            self._copy(state if isinstance(state, tuple) else (state,))
        elif name != 'PROTO':
            raise ValueError(f'the opcode {name} does not belong in a checkpoint')

    def _spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise Excess('it would build far more than it contains')

    def _since_mark(self) -> list:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _global(self, words: str) -> _Global:
        name = words.replace(' ', '.').replace('__builtin__.', 'builtins.', 1)
        if name not in self.called and name not in NAMED_ONLY:
            raise UnsafeName(name)
        return _Global(name)

    def _tuple(self, items: list) -> _Tuple:
        self._spend(OBJECT_BYTES)
        result = _Tuple(items)
        result.depth += max((item.depth for item in items if isinstance(item, _Tuple)), default=0)
        result.weight += _weight(items)
        if result.depth > MAX_TUPLE_DEPTH:
            raise Excess(f'it nests tuples more than {MAX_TUPLE_DEPTH} deep')
        return result

    def _fill(self, items: list) -> None:
        """Add items to the container on the stack, which may hash them now or later."""
        weight = _weight(items)
        self._spend(weight)
        self.stack[-1].length += weight

    def _storage(self, kind: str, storage: str, key: str, _: str, numel: int, *__: Any) -> _Thing:
        if kind != 'storage' or type(key) not in (str, int) or type(numel) is not int or numel < 0:
            raise ValueError('the description of a storage is not understood')
        itemsize = STORAGES[storage]
        if key not in self.storages:
            self.storages.add(key)
            self.claimed += numel * itemsize
        if self.claimed > self.file_bytes:
            raise Excess('its tensors claim more bytes than the file has')
        return _Thing(numel, itemsize)

    def _call(self, function: Any, arguments: tuple) -> _Thing:
        if not isinstance(function, _Global) or function in NAMED_ONLY:
            raise UnsafeName(f'a call of {function}')
        if function == '_codecs.encode' and arguments[1:] not in (('latin1',), ('latin-1',)):
            raise UnsafeName('_codecs.encode to something other than latin1')
        if function.startswith('torch._utils._rebuild_'):
            if function.startswith('torch._utils._rebuild_tensor'):
                self._show(*arguments[:3])
            self._spend(8 * OBJECT_BYTES)
            return _Thing(1, OBJECT_BYTES)
        return _Thing(self._copy(arguments), 1)

    def _show(self, storage: _Thing, _: int, shape: tuple) -> None:
        """A tensor on a storage; with strides of 0 it repeats one element any number of times."""
        if len(shape) > 64 or any(type(size) is not int or not 0 <= size < 2**63 for size in shape):
            raise ValueError('a tensor has an impossible shape')
        self.shown += math.prod(shape) * storage.itemsize
        if self.shown > MAX_VIEWS * self.file_bytes:
            raise Excess('its tensors have more elements than the file')

    def _copy(self, arguments: tuple) -> int:
        """The bytes of its arguments that a call may copy."""
        size = 0
        for argument in arguments:
            if isinstance(argument, (str, bytes)):
                size += len(argument)
            elif isinstance(argument, _Thing):
                size += argument.length * argument.itemsize
            elif isinstance(argument, _Tuple):
                size += OBJECT_BYTES * argument.weight
        self._spend(OBJECT_BYTES + size)
        return size


def _weight(items: list) -> int:
    return sum(item.weight if isinstance(item, _Tuple) else 1 for item in items)
