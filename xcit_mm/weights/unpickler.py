"""An unpickler that builds tensors, plain values and what mmengine adds to them, and nothing else.

It is Python's own unpickler, reduced to the opcodes that ``torch.save`` writes and to a table of
names. It is used instead of ``torch.load(weights_only=True)`` for three reasons:

- It is the same with every torch. Before 2.6, torch's cannot read mmengine's checkpoints.
- Its table is its own. torch's belongs to the whole process: entries of two packages collide, and
  a package that removes its entries also removes those of another.
- torch's builds whatever a file asks for. A few bytes can ask for a ``bytearray`` of any size, copy
  one long list a million times, present a small storage as a huge tensor, or hash tuples that are
  nested until the stack overflows and the interpreter ends.
"""

import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor, nn

from ..compat.checkpoints import STAND_INS, History, Numbers, NumberType

# Written in Python: what it does for an opcode can be replaced, other than in the one in C.
PythonUnpickler: Any = pickle._Unpickler

OPCODES = (
    pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.BINPERSID, pickle.BINPUT,
    pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT,
    pickle.BINUNICODE, pickle.SHORT_BINSTRING, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2,
    pickle.TUPLE3, pickle.TUPLE, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS,
    pickle.EMPTY_DICT,
)  # fmt: skip

# Memory for what calls build and copy: this much per byte of the pickle that was read so far.
BYTES_PER_BYTE = 128
CALL_BYTES, ITEM_BYTES = 256, 64
# Several tensors may share a storage: tied weights.
MAX_VIEWS = 4


class UnsafeNameError(Exception):
    """A pickle that names something that is not allowed."""


class ExcessError(Exception):
    """A file that claims or builds more than it can contain."""


class Function(NamedTuple):
    """Something that a pickle may call, not only name."""

    call: Callable


class Storage(NamedTuple):
    """The bytes that tensors are made of, and the type of their elements."""

    data: Tensor
    dtype: torch.dtype


def check_key(key: Any) -> Any:
    """Return a key of a dict or set; raise unless hashing it is safe."""
    for part in key if type(key) is tuple else (key,):
        if type(part) not in (str, bytes, int, float, bool, type(None)):
            raise ValueError('a key is neither text nor a number')
    return key


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ('latin1', 'latin-1'):
        raise UnsafeNameError('_codecs.encode to something other than latin1')
    return text.encode('latin1')


def _set(items: list) -> set:
    return set(map(check_key, items))


def _counter(counts: dict) -> Counter:
    return Counter(dict.copy(counts))


def _size(lengths: tuple) -> torch.Size:
    if type(lengths) is not tuple:
        raise ValueError('a size is not a tuple')
    return torch.Size(lengths)


# Sparse and quantized tensors are missing: no checkpoint here has them, and torch does not verify
# all their sizes.
NAMES: dict[str, Any] = {
    **{f'torch.{name}': kind for name, kind in vars(torch).items()
       if isinstance(kind, torch.dtype) and not name.startswith('q')},
    'torch.BFloat16Storage': torch.bfloat16,
    'torch.BoolStorage': torch.bool,
    'torch.ByteStorage': torch.uint8,
    'torch.CharStorage': torch.int8,
    'torch.ComplexDoubleStorage': torch.complex128,
    'torch.ComplexFloatStorage': torch.complex64,
    'torch.DoubleStorage': torch.float64,
    'torch.FloatStorage': torch.float32,
    'torch.HalfStorage': torch.float16,
    'torch.IntStorage': torch.int32,
    'torch.LongStorage': torch.int64,
    'torch.ShortStorage': torch.int16,
    'torch.storage.UntypedStorage': torch.uint8,
    'torch.Size': Function(_size),
    'torch.device': Function(torch.device),
    'builtins.bytes': Function(lambda: b''),  # how an empty numpy array is written
    'builtins.complex': Function(complex),
    'builtins.set': Function(_set),
    'collections.Counter': Function(_counter),
    'collections.OrderedDict': Function(lambda: OrderedDict()),
    '_codecs.encode': Function(_encode),
    **{name: Function(stand_in) for name, stand_in in STAND_INS.items()},
    # These two are named, but not called.
    'mmengine.logging.history_buffer.HistoryBuffer': History,
    'numpy.ndarray': Numbers,
}  # fmt: skip


def _refuse_opcode(_: Any) -> None:
    raise ValueError('it contains an opcode that torch.save does not write')


class SafeUnpickler(PythonUnpickler):
    """Reads the pickles of one file.

    Args:
        file (BinaryIO): The pickles.
        file_bytes (int): The size of the whole file: the limit for all storages together.
        device (str): ``cpu``, or ``meta`` for tensors without content.

    Attributes:
        storages (dict): The storages by their key in the file. They are still to be filled.
        tensors (list): The tensors that were built on them.
    """

    dispatch: Any = defaultdict(lambda: _refuse_opcode)
    dispatch.update({opcode[0]: PythonUnpickler.dispatch[opcode[0]] for opcode in OPCODES})

    def __init__(self, file: BinaryIO, file_bytes: int, device: str) -> None:
        super().__init__(file, encoding='utf-8')
        self.file, self.file_bytes, self.device = file, file_bytes, device
        self.storages: dict[str, Storage] = {}
        self.tensors: list[Tensor] = []
        self.claimed = self.shown = self.spent = 0
        self.names = NAMES | {
            'torch._utils._rebuild_tensor': Function(self._tensor),
            'torch._utils._rebuild_tensor_v2': Function(self._tensor),
            'torch._utils._rebuild_tensor_v3': Function(self._tensor_of_type),
            'torch._utils._rebuild_parameter': Function(self._parameter),
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for."""
        full = f'{module}.{name}'.replace('__builtin__.', 'builtins.', 1)
        if full not in self.names:
            raise UnsafeNameError(full)
        return self.names[full]

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage as a flat tensor."""
        kind, dtype, key, _, numel, *view = pid
        types = [type(part) for part in (kind, dtype, key, numel)]
        if types != [str, torch.dtype, str, int] or kind != 'storage' or view not in ([], [None]):
            raise ValueError('the description of a storage is not understood')
        self._spend(())
        if key not in self.storages:
            self.claimed += numel * dtype.itemsize
            if self.claimed > self.file_bytes:
                raise ExcessError('its tensors claim more bytes than the file has')
            data = torch.empty(numel * dtype.itemsize, dtype=torch.uint8, device=self.device)
            self.storages[key] = Storage(data, dtype)
        return self.storages[key].data.view(dtype)

    def _tensor(
        self,
        storage: Tensor,
        offset: int,
        size: tuple,
        stride: tuple,
        requires_grad: bool = False,
        _: Any = None,
        metadata: Any = None,
    ) -> Tensor:
        """Stand in for torch's ``_rebuild_tensor`` and ``_rebuild_tensor_v2``."""
        if metadata:
            raise ValueError('a tensor is conjugated or negated')
        # It raises if the tensor is not inside its storage. `data` forgets that it is a view.
        tensor = storage.as_strided(size, stride, offset).data.requires_grad_(requires_grad)
        # Strides of 0 repeat an element any number of times.
        self.shown += tensor.nbytes
        if self.shown > MAX_VIEWS * self.file_bytes:
            raise ExcessError('its tensors have more elements than the file')
        self.tensors.append(tensor)
        return tensor

    def _tensor_of_type(self, storage: Tensor, *arguments: Any) -> Tensor:
        """Stand in for torch's ``_rebuild_tensor_v3``, whose seventh argument is the type."""
        *others, dtype = arguments[:6]
        return self._tensor(storage.view(dtype), *others)

    def _parameter(self, data: Tensor, requires_grad: bool, _: Any) -> nn.Parameter:
        """Stand in for torch's ``_rebuild_parameter``."""
        parameter = nn.Parameter(data, requires_grad)
        self.tensors.append(parameter)
        return parameter

    def _spend(self, copied: Iterable) -> None:
        """Account for a call or state, which may copy its parts."""
        self.spent += CALL_BYTES
        for value in copied:
            if isinstance(value, (str, bytes)):
                self.spent += len(value)
            elif isinstance(value, (list, tuple, dict, set, Numbers)):
                self.spent += ITEM_BYTES * len(value)
        if self.spent > BYTES_PER_BYTE * self.file.tell():
            raise ExcessError('it would build far more than it contains')

    def load_reduce(self) -> None:
        """Call a function."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(function) is not Function or type(arguments) is not tuple:
            raise UnsafeNameError('a call of something that may not be called')
        self._spend(arguments)
        self.append(function.call(*arguments))

    def load_newobj(self) -> None:
        """Create an object, whose state follows."""
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind is not History or arguments != ():
            raise UnsafeNameError('an object of a class that may not be created')
        self._spend(())
        self.append(History())

    def load_build(self) -> None:
        """Set the state of an object. Of a dict it is only torch's own, the versions of modules."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict:
            versions = state.get('_metadata')
            if type(versions) is OrderedDict:
                self._spend([versions])
                known = {name: value for name, value in versions.items() if type(value) is dict}
                target._metadata = OrderedDict(known)  # type: ignore[attr-defined]
        elif type(target) in (History, Numbers, NumberType) and type(state) in (dict, tuple):
            self._spend(state.values() if type(state) is dict else state)
            target.__setstate__(state)
        else:
            raise UnsafeNameError('a state of something that has none')

    def load_setitem(self) -> None:
        """Set an item of a dict."""
        check_key(self.stack[-2])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dict."""
        for key in self.stack[::2]:
            check_key(key)
        super().load_setitems()

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
