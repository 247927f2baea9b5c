"""What the pickle of a checkpoint may name.

Beside these, what was added to torch's own allow-list, as :mod:`xcit_mm.compat` does for
mmengine's checkpoints.
"""

import torch

# What a pickle may call. Sparse, nested and quantised tensors are in no checkpoint of a network
# here, and torch does not check all that they claim.
CALLED = {
    'builtins.complex',
    'builtins.set',
    '_codecs.encode',
    'collections.Counter',
    'collections.OrderedDict',
    'torch.Size',
    'torch.device',
    'torch._utils._rebuild_parameter',
    'torch._utils._rebuild_tensor',
    'torch._utils._rebuild_tensor_v2',
    'torch._utils._rebuild_tensor_v3',
}
# Bytes an element of the storages that it may name.
STORAGES = {
    'torch.BFloat16Storage': 2,
    'torch.BoolStorage': 1,
    'torch.ByteStorage': 1,
    'torch.CharStorage': 1,
    'torch.ComplexDoubleStorage': 16,
    'torch.ComplexFloatStorage': 8,
    'torch.DoubleStorage': 8,
    'torch.FloatStorage': 4,
    'torch.HalfStorage': 2,
    'torch.IntStorage': 4,
    'torch.LongStorage': 8,
    'torch.ShortStorage': 2,
    'torch.storage.UntypedStorage': 1,
}
DTYPES = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
NAMED_ONLY = {*STORAGES, *DTYPES, 'numpy.ndarray'}


def called_names() -> set[str]:
    """What it may call now."""
    added = torch.serialization.get_safe_globals()
    return CALLED | {
        entry[1] if isinstance(entry, tuple) else f'{entry.__module__}.{entry.__qualname__}'
        for entry in added
    }
