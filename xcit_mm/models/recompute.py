"""Computing a part again in backward instead of keeping its activations."""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(
    module: nn.Module, function: Callable[..., Tensor], *args: Any, random: bool = False
) -> Tensor:
    """``function(*args)``, computed again in backward as far as backward needs it.

    A compiler gets the function as it is: it decides on its own what to compute again.

    Args:
        module (nn.Module): Whose layers the function uses. The second time its BatchNorm layers
            leave their running statistics alone, which one batch must move only once.
        function (callable): What is computed.
        *args: Its arguments.
        random (bool): Whether chance takes part and must come out the same. Defaults to False.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*args)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=random,
        context_fn=lambda: (nullcontext(), _statistics_kept(module)),
    )


@contextmanager
def _statistics_kept(module: nn.Module) -> Iterator[None]:
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training]
    settings = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked = norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, momentum, count in settings:
            norm.momentum, norm.num_batches_tracked = momentum, count


# Layers. Handing memory back costs page faults when it is taken again. A step of S12/16 at 800x1344
# took 1.57 times our default's when it was done after every layer, 1.26 after every fourth or sixth
# and 1.18 never, with 0.17, 0.2 and 0.33 of timm's memory; a step of S12/8 1.33 after every fourth
# and 1.25 after every sixth.
RELEASE_INTERVAL = 6


def release(x: Tensor) -> Tensor:
    """Hand freed memory back to the system, here and when backward passes here.

    glibc keeps what was freed, and its aligned allocation cannot take a freed piece of the very
    size that it needs; a layer's temporary tensors then pile up. Does nothing on other devices and
    with other C libraries.
    """
    if x.device.type != 'cpu' or not x.requires_grad or torch.compiler.is_compiling():
        return x
    return _Release.apply(x)


class _Release(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _malloc_trim()(0)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _malloc_trim()(0)
        return grad


@functools.cache
def _malloc_trim() -> Callable[[int], Any]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return lambda _: None
