"""Recomputes a part in backward instead of keeping its activations."""

import ctypes
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .operators import BatchNorm, is_traced


def recomputed(
    module: nn.Module, function: Callable[..., Tensor], *args: Any, random: bool = False
) -> Tensor:
    """Return ``function(*args)``, recomputed in backward as far as backward needs it.

    Compilers and tracers get the function as it is: they decide on their own what to recompute.

    Args:
        module (nn.Module): Contains the layers that the function uses. Recomputation leaves the
            running statistics of its BatchNorm layers alone: a batch must move them only once.
        function (callable): What is computed.
        *args: Its arguments.
        random (bool): Whether random numbers are used and must be the same again. Defaults to
            False.
    """
    if is_traced(*args) or not torch.is_grad_enabled():
        return function(*args)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=random,
        context_fn=lambda: (nullcontext(), _StatisticsKept(module)),
    )


class _StatisticsKept:
    """A context in which BatchNorm keeps its running statistics.

    It is entered once per backward pass through the same graph.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.settings = [
            (norm, norm.momentum, norm.num_batches_tracked)
            for norm in self.module.modules()
            if isinstance(norm, BatchNorm) and norm.training
        ]
        for norm, _, count in self.settings:
            norm.momentum = 0.0
            norm.num_batches_tracked = None if count is None else count.clone()

    def __exit__(self, *_: Any) -> None:
        for norm, momentum, count in self.settings:
            norm.momentum, norm.num_batches_tracked = momentum, count


# In layers. Returning memory costs page faults when it is needed again. A step of S12/16 at
# 800x1344 took 1.57 times as long as by default when memory was returned after every layer, 1.26
# after every fourth or sixth and 1.18 never, with 0.17, 0.2 and 0.33 of timm's memory; a step of
# S12/8 took 1.33 after every fourth and 1.25 after every sixth.
RELEASE_INTERVAL = 6


def release(x: Tensor) -> Tensor:
    """Return freed memory to the system, now and when backward passes this point.

    glibc keeps what was freed, and its aligned allocation cannot reuse a freed piece of exactly the
    size that it needs, so a layer's temporary tensors pile up. Does nothing on other devices and
    with other C libraries.
    """
    return _Release.apply(x) if x.device.type == 'cpu' and x.requires_grad else x


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
