"""Operations on many tensors in few kernels.

torch has no public name for its ``_foreach`` functions. Without them, the tensors come one by one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of each tensor, as one tensor; nothing waits for the device.

    Args:
        tensors (Sequence[Tensor]): At least one, all on one device.
    """
    if hasattr(torch, '_foreach_norm'):
        return torch.stack(torch._foreach_norm(list(tensors)))
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])


def scale_all(tensors: Sequence[Tensor], factors: Tensor) -> None:
    """Multiply each tensor, in place, by its own factor."""
    if hasattr(torch, '_foreach_mul_'):
        torch._foreach_mul_(list(tensors), list(factors.unbind()))
        return
    for tensor, factor in zip(tensors, factors, strict=True):
        tensor.mul_(factor)


def copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy each tensor to its target."""
    if not hasattr(torch, '_foreach_copy_'):  # before torch 2.1
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        return
    # Only tensors of one type and device share a kernel.
    groups: dict[tuple, tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        of_one_kind = groups.setdefault((source.dtype, source.device), ([], []))
        of_one_kind[0].append(source)
        of_one_kind[1].append(target)
    for some_sources, some_targets in groups.values():
        torch._foreach_copy_(some_targets, some_sources)
