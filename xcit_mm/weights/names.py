"""What the pickle of a checkpoint may name.

It may also name what is on torch's own allow-list, to which :mod:`xcit_mm.compat` adds the contents
of mmengine's checkpoints.
"""

import torch

# What a pickle may call. Sparse, nested and quantized tensors are missing: no checkpoint here has
# them, and torch does not verify all their sizes.
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
# The storages that it may name, with bytes per element.
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
    """What a pickle may call, with what has been added to torch's allow-list by now."""
    added = torch.serialization.get_safe_globals()
    return CALLED | {
        entry[1] if isinstance(entry, tuple) else f'{entry.__module__}.{entry.__qualname__}'
        for entry in added
    }
