"""The parts of torch without a public name that the fast executions use: all are looked up here.

Each has its reason and its public alternative. If this version of torch lacks one of them,
:func:`has_all_parts` says so, and the plain modules run.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from mmengine.utils import digit_version
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import Proxy

# For operators in Python, one graph for all modules of a kind, and the test for torch.export.
MIN_TORCH_TO_COMPILE = '2.7'
# The parts that this version of torch lacks.
MISSING: list[str] = []


def _find(path: str, before_2_6: Callable | None = None) -> Any:
    """Return what a dotted path names, or None, noted in :data:`MISSING`, if there is no such.

    Args:
        path (str): Such as ``torch.ops.aten.gelu_backward``.
        before_2_6 (callable, optional): What to use instead on an old torch. Defaults to None.
    """
    try:
        return functools.reduce(getattr, path.split('.')[1:], torch)
    except AttributeError:
        if before_2_6 is not None and digit_version(torch.__version__) < digit_version('2.6'):
            return before_2_6
        MISSING.append(path)
        return None


def _is_in_any_mode() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def _has_batched_key(tensor: Tensor) -> bool:
    return ', Batched' in str(torch._C._dispatch_keys(tensor))


_gelu_backward = _find('torch.ops.aten.gelu_backward')
_layer_norm = _find('torch.native_layer_norm')
_layer_norm_backward = _find('torch.ops.aten.native_layer_norm_backward')
_peek_interpreter_stack = _find('torch._C._functorch.peek_interpreter_stack')
_is_legacy_batchedtensor = _find('torch._C._functorch.is_legacy_batchedtensor', _has_batched_key)
_is_compiling = _find('torch.compiler.is_compiling', getattr(torch._utils, 'is_compiling', None))
_proxy_key = _find('torch._C._TorchDispatchModeKey.PROXY', _is_in_any_mode)
_get_dispatch_mode = _find('torch._C._get_dispatch_mode', _is_in_any_mode)
_find('torch.autograd.forward_ad._current_level')  # a number that changes: read where it is used
_GLOBAL_HOOKS = [
    _find(f'torch.nn.modules.module._global_{kind}_hooks')
    for kind in ('forward', 'forward_pre', 'backward', 'backward_pre')
]
# What :func:`tree` and :func:`describe` read of every module.
_INSIDE = (
    *('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks'),
    *('_modules', '_parameters'),
)
MISSING += [f'torch.nn.Module.{name}' for name in _INSIDE if name not in vars(nn.Module())]
# The base class of all of torch's and OpenMMLab's; without it, the public ones.
_PUBLIC_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BatchNorm = getattr(nn.modules.batchnorm, '_BatchNorm', _PUBLIC_NORMS)


def has_all_parts() -> bool:
    """Return whether torch has all that the fast executions need; warn once if it does not."""
    if MISSING:
        _warn(
            f'PyTorch {torch.__version__} lacks {", ".join(MISSING)}, which xcit_mm uses to run '
            'XCiT fast. The plain network runs instead: the results are the same, but it takes '
            'more time and memory.'
        )
    return not MISSING


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of GELU at x; the public way is a graph and ``torch.autograd.grad``."""
    return _gelu_backward(grad, x)


def layer_norm_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return LayerNorm with the mean and the inverse deviation that its backward needs."""
    return _layer_norm(x, list(weight.shape), weight, bias, eps)


def layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of LayerNorm with respect to x, weight and bias."""
    return _layer_norm_backward(
        grad, x, list(weight.shape), mean, rstd, weight, bias, [True, True, True]
    )


def cast_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies of tensors in another type; the public way takes one kernel for each."""
    if not hasattr(torch, '_foreach_copy_'):
        return [tensor.to(dtype, copy=True) for tensor in tensors]
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def is_compiling() -> bool:
    """Return whether ``torch.compile`` or ``torch.export`` records."""
    return bool(_is_compiling and _is_compiling())


def check_compiler() -> None:
    """Raise an error if this version of torch cannot compile the layers."""
    if digit_version(torch.__version__) < digit_version(MIN_TORCH_TO_COMPILE):
        raise ValueError(
            f'compile=True needs PyTorch {MIN_TORCH_TO_COMPILE} or newer, and this is PyTorch '
            f'{torch.__version__}'
        )


def is_compiled_by_user() -> bool:
    """Return whether ``torch.compile`` of a user, not ``torch.export``, traces the network."""
    is_exporting = getattr(torch.compiler, 'is_exporting', None)  # since torch 2.7
    return bool(is_exporting and torch.compiler.is_dynamo_compiling() and not is_exporting())


def is_traced(*inputs: Any) -> bool:
    """Return whether the operations of the network are being traced or transformed.

    This is so under compilers, ``torch.jit.trace``, ``torch.fx``, the transforms of ``torch.func``
    (grad, vmap, ...) and forward-mode differentiation. torch has public tests only for the first
    three.

    Args:
        *inputs: What the network is called with; stand-ins under ``torch.fx``.
    """
    return bool(
        is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or any(isinstance(value, Proxy) for value in inputs)
        or (_peek_interpreter_stack and _peek_interpreter_stack() is not None)
        or _is_proxy_traced()
        or getattr(forward_ad, '_current_level', -1) >= 0
    )


def _is_proxy_traced() -> bool:
    """Return whether ``make_fx`` records; on an old torch, whether any dispatch mode is on."""
    if _is_in_any_mode in (_proxy_key, _get_dispatch_mode):
        return _is_in_any_mode()
    has_parts = _proxy_key is not None and _get_dispatch_mode is not None
    return has_parts and _get_dispatch_mode(_proxy_key) is not None


def is_batched(grad: Tensor) -> bool:
    """Return whether a gradient stands for many, as with ``is_grads_batched=True``."""
    return _is_legacy_batchedtensor(grad)


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module computes BatchNorm as torch does, in one process or many.

    Other subclasses of :class:`BatchNorm` compute something else.
    """
    return isinstance(module, BatchNorm) and type(module).forward in _BATCH_NORM_FORWARDS


_BATCH_NORM_FORWARDS = (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward)


def assume(condition: bool) -> None:
    """Tell torch.export what holds for numbers that it cannot know; it has no public way."""
    if hasattr(torch, '_check'):
        torch._check(condition)


def tree(module: nn.Module) -> list[nn.Module]:
    """List a module and all its descendants; ``modules`` takes four times as long."""
    children = [child for child in module._modules.values() if child is not None]
    return [module, *(part for child in children for part in tree(child))]


def describe(module: nn.Module, settings: Sequence[str]) -> tuple:
    """Return what makes a module behave as it does: class, hooks, parameter types, settings.

    torch has no public test for hooks and ``module.compile()``, and its public ``named_parameters``
    leaves out parameters that are None.

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
        or own.get('_compiled_call_impl') is not None  # by module.compile(), since torch 2.2
    )
    # BatchNorm comes in several classes: one process or many, one dimension or two.
    kind = 'BatchNorm' if is_batch_norm(module) else type(module)
    # Quantized, sharded and other subclasses of tensors have operators of their own.
    types = (*map(type, own['_parameters'].values()),)
    return kind, bool(is_hooked), types, *map(own.get, settings)


class Snapshot:
    """How modules are, to notice that one has changed in a quarter of the time of describing them.

    Args:
        modules (Sequence[nn.Module]): A module and all its descendants, so that a replaced one is
            noticed; nobody has hooked or compiled one or given it a forward of its own.
        settings (Mapping[type, Sequence[str]]): By class, names of attributes that matter.
    """

    def __init__(
        self, modules: Sequence[nn.Module], settings: Mapping[type, Sequence[str]]
    ) -> None:
        self.modules = modules
        self.inside = [module.__dict__ for module in modules]
        self.settings = [
            (module.__dict__, name) for module in modules for name in settings.get(type(module), ())
        ]
        self.state = self._state()

    def is_current(self) -> bool:
        """Return whether no module has changed since, in any way that :func:`describe` tells.

        This is called in every forward pass, so it must be quick.
        """
        for own in self.inside:
            if (
                own['_forward_hooks']
                or own['_forward_pre_hooks']
                or own['_backward_hooks']
                or own['_backward_pre_hooks']
                or 'forward' in own
                or '_compiled_call_impl' in own
            ):
                return False
        return self._state() == self.state

    def _state(self) -> tuple[list, ...]:
        kinds: list[Any] = [*map(type, self.modules)]
        return (
            kinds,
            [kind.forward for kind in set(kinds)],
            [c for own in self.inside if own['_modules'] for c in own['_modules'].values()],
            [type(value) for own in self.inside for value in own['_parameters'].values()],
            [own.get(name) for own, name in self.settings],
        )


def has_global_hooks() -> bool:
    """Return whether hooks for all modules exist, as profilers add; torch has no public test."""
    return any(_GLOBAL_HOOKS)
