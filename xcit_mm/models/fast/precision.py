"""Where autocast must not reach, and what it asks for elsewhere."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Return the type in which autocast multiplies this tensor; None where it is off."""
    device = tensor.device.type
    if not hasattr(torch, 'get_autocast_dtype'):  # before torch 2.4
        if device == 'cpu':
            return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
        is_on = device == 'cuda' and torch.is_autocast_enabled()
        return torch.get_autocast_gpu_dtype() if is_on else None
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(tensor: Tensor) -> AbstractContextManager:
    """Return a context in which operations on this tensor keep its precision."""
    if autocast_dtype(tensor) is None:
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def sums_halves_in_float32(device: torch.device) -> bool:
    """Return whether ``torch.bmm`` can multiply half-precision factors into a float32 product.

    So far, only Nvidia GPUs do, since torch 2.8. There, such a product is many times as fast as one
    of float32 factors.
    """
    return (
        device.type == 'cuda'
        and torch.version.cuda is not None
        and 'dtype' in torch.ops.aten.bmm.overloads()
    )


def is_half(dtype: torch.dtype) -> bool:
    """Return whether numbers of this type take two bytes."""
    return dtype in (torch.float16, torch.bfloat16)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or as it is if it is more precise."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
