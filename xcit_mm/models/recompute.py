"""Computing a part again in backward instead of keeping its activations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(module: nn.Module, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """``function(*args)``, computed again in backward.

    Args:
        module (nn.Module): Whose layers the function uses. The second time its BatchNorm layers
            leave their running statistics alone, which one batch must move only once.
        function (callable): What is computed.
        *args: Its arguments.
    """
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
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
