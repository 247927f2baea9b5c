"""The private parts of torch that we use, each with the reason and the public alternative.

There is no public operator that gives the derivative of GELU or LayerNorm without building a graph.
``python -m dev.private_operators`` measures what the public alternatives cost.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm

# The base class of all of torch's and OpenMMLab's.
BatchNorm = _BatchNorm


def gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of GELU at x. The public alternative is a graph and ``torch.autograd.grad``."""
    return torch.ops.aten.gelu_backward(grad, x)


def layer_norm_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm with the mean and the inverse deviation that its backward needs."""
    return torch.native_layer_norm(x, list(weight.shape), weight, bias, eps)


def layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of LayerNorm with respect to x, weight and bias."""
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, list(weight.shape), mean, rstd, weight, bias, [True, True, True]
    )


def is_traced() -> bool:
    """Whether the operations of the network are being traced or transformed.

    This is so under compilers, ``torch.jit.trace``, ``torch.fx``, the transforms of ``torch.func``
    (grad, vmap, ...) and forward-mode differentiation. torch has public tests only for the first
    two.
    """
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or _symbolic_trace._is_fx_tracing_flag
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or forward_ad._current_level >= 0
    )


def is_batched(grad: Tensor) -> bool:
    """Whether a gradient stands for many, as in ``torch.autograd.grad(is_grads_batched=True)``."""
    return torch._C._functorch.is_legacy_batchedtensor(grad)


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module computes BatchNorm as torch does, in one process or many.

    Other subclasses of :class:`BatchNorm` compute something else.
    """
    return isinstance(module, BatchNorm) and type(module).forward in _BATCH_NORM_FORWARDS


_BATCH_NORM_FORWARDS = (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward)


def assume(condition: bool) -> None:
    """Tell torch.export what holds for numbers that it cannot know; it has no public way."""
    torch._check(condition)


def tree(module: nn.Module) -> list[nn.Module]:
    """A module and all its descendants; the public ``modules`` takes four times as long."""
    children = [child for child in module._modules.values() if child is not None]
    return [module, *(part for child in children for part in tree(child))]


def describe(module: nn.Module, settings: Sequence[str]) -> tuple:
    """What makes a module behave as it does: class, hooks, types of parameters, settings.

    torch has no public test for hooks, and its public ``named_parameters`` leaves out parameters
    that are None. This is called for every module in every forward pass, so it must be quick.

    Args:
        module (nn.Module): The module.
        settings (Sequence[str]): Names of attributes that matter.
    """
    own = module.__dict__
    is_hooked = (
        own['_forward_hooks']
        or own['_forward_pre_hooks']
        or own['_backward_hooks']
        or own['_backward_pre_hooks']
        or 'forward' in own
    )
    # BatchNorm comes in several classes: one process or many, one dimension or two.
    kind = 'BatchNorm' if is_batch_norm(module) else type(module)
    # Quantised, sharded and other subclasses of tensors have operators of their own.
    types = (*map(type, own['_parameters'].values()),)
    return kind, bool(is_hooked), types, *map(own.get, settings)


def has_global_hooks() -> bool:
    """Whether hooks for all modules are registered, as profilers do; torch has no public test."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
