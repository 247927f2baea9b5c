"""Another device, without the hardware: tensors that live on the CPU and say that they do not.

Like tensors on a GPU, they cannot be mixed with those of the CPU. Unlike those on the ``meta``
device, they have values, so that detectors, which choose boxes by their scores, can run on them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

NAME = 'meta'  # the only device that torch lets us name without having it


class Elsewhere(Tensor):
    """A tensor of the other device; ``there`` is the tensor of the CPU that holds its values."""

    there: Tensor

    @staticmethod
    def __new__(cls, there: Tensor) -> 'Elsewhere':
        tensor = Tensor._make_wrapper_subclass(
            cls,
            there.shape,
            strides=there.stride(),
            storage_offset=there.storage_offset(),
            dtype=there.dtype,
            device=NAME,
            requires_grad=there.requires_grad,
        )
        tensor.there = there.detach()
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f'Elsewhere({self.there})'


def run(func: Any, args: Any, kwargs: dict) -> Any:
    """Run an operator on the other device."""
    stays = kwargs.get('device') is None or is_there(kwargs['device'])
    # As on a GPU, copies and indices may come from the CPU, and so may single numbers.
    is_free = any(word in func.__name__ for word in ('copy', 'index'))

    def enter(tensor: Tensor) -> Tensor:
        if isinstance(tensor, Elsewhere):
            return tensor.there
        assert not is_there(tensor.device), f'{func} got a tensor without values: {tensor.shape}'
        assert is_free or tensor.ndim == 0, f'{func} got a tensor of the CPU: {tensor.shape}'
        return tensor

    inner_args, inner_kwargs = tree_map_only(Tensor, enter, (args, kwargs))
    if 'device' in kwargs:
        inner_kwargs['device'] = 'cpu'
    result = func(*inner_args, **inner_kwargs)
    if not stays:
        return result
    result = tree_map_only(Tensor, Elsewhere, result)
    return return_and_correct_aliasing(func, args, kwargs, result)


@contextmanager
def other_device() -> Iterator[None]:
    """While active, tensors that are made on the device :data:`NAME` have values."""
    with _Operators(), _FromData():
        yield


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return run(func, args, kwargs) if is_there(kwargs.get('device')) else func(*args, **kwargs)


class _FromData(TorchFunctionMode):
    """Tensors and indices from Python's numbers, which torch does not dispatch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.new_tensor and is_there(args[0].device):
            return Elsewhere(args[0].there.new_tensor(*args[1:], **kwargs))
        if func in (torch.tensor, torch.as_tensor) and is_there(kwargs.get('device')):
            return Elsewhere(func(*args, **{**kwargs, 'device': 'cpu'}))
        if func in (Tensor.__getitem__, Tensor.__setitem__) and is_there(args[0].device):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(i) if isinstance(i, list) else i for i in index)
            return func(args[0], index, *args[2:])
        return func(*args, **kwargs)


def is_there(device: Any) -> bool:
    """Whether a device, or the name of one, is the other device."""
    return device is not None and torch.device(device).type == NAME


def move(module: nn.Module) -> nn.Module:
    """Move parameters and buffers to the other device, in place."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                moved = nn.Parameter(Elsewhere(parameter.data), parameter.requires_grad)
                part._parameters[name] = moved
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = Elsewhere(buffer)
    return module


def reaching(function: Callable) -> Callable:
    """A compiled function of mmcv, which torch does not dispatch, for tensors of the device."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Elsewhere, lambda tensor: tensor.there, (args, kwargs))
        return tree_map_only(Tensor, Elsewhere, function(*args, **kwargs))

    return call
