"""The private parts of torch that are used, each with its reason and the public way.

There is no public operator that computes GELU in place, or that gives the derivative of GELU or
LayerNorm without building a graph. ``python -m dev.private_operators`` measures what the public
ways cost.
"""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn.modules import module as torch_module


def gelu_(x: Tensor) -> Tensor:
    """GELU in place. The public ``F.gelu`` takes fresh memory for its result."""
    return torch.ops.aten.gelu_(x)


def gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of GELU at x. The public way is a graph for ``torch.autograd.grad``."""
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
    """Whether somebody follows the operations of the network, not its numbers alone.

    These are compilers, ``torch.jit.trace``, ``torch.fx``, the transforms of ``torch.func`` (grad,
    vmap, ...) and forward-mode differentiation. torch has public tests for the first two only.
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


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, or a forward of its own; torch has no public test."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or 'forward' in module.__dict__
    )


def has_global_hooks() -> bool:
    """Whether hooks for all modules are registered, as profilers do; torch has no public test."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
