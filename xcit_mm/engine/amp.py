"""Mixed precision with CUDA and single precision without, from one config."""

from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module(name='CudaAmpOptimWrapper')
def cuda_amp_optim_wrapper(
    loss_scale: str | float | dict = 'dynamic', dtype: str | None = None, **kwargs: Any
) -> OptimWrapper:
    """Build mmengine's ``AmpOptimWrapper`` with CUDA, its ``OptimWrapper`` without.

    Args:
        loss_scale (str, float or dict): As for ``AmpOptimWrapper``. Defaults to ``dynamic``.
        dtype (str, optional): As for ``AmpOptimWrapper``. Defaults to None.
        **kwargs: Arguments of ``OptimWrapper``.
    """
    if torch.cuda.is_available():
        return AmpOptimWrapper(loss_scale=loss_scale, dtype=dtype, **kwargs)
    return OptimWrapper(**kwargs)
