"""What a training run uses beside the network: optimizer wrappers and hooks."""

from .amp import cuda_amp_optim_wrapper
from .progress import ProgressBarHook

__all__ = ['ProgressBarHook', 'cuda_amp_optim_wrapper']
