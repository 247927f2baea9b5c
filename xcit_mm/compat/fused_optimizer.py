"""Fused optimizers in a config, on the CPU of an older PyTorch.

Obstacle: before torch 2.4, ``fused=True`` is for CUDA only, and raises elsewhere. The short runs on
the drawn dataset ask for it, because a step on the CPU takes a fraction of the time.

What this does: removes the option from the config, before anything is built, and logs that.
"""

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.utils import digit_version

from ..configs import nested_dicts


def revert_fused(cfg: Config) -> None:
    """Remove ``fused`` from optimizers if there is no CUDA device and torch needs one for it.

    Args:
        cfg (Config): The whole config, changed in place.
    """
    if torch.cuda.is_available() or digit_version(torch.__version__) >= digit_version('2.4'):
        return
    for node in nested_dicts(cfg.get('optim_wrapper') or {}):
        if node.pop('fused', False):
            print_log(f'torch {torch.__version__} has no fused optimizer for the CPU', 'current')
