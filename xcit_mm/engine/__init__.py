"""What a training run uses beside the network: optimizer wrappers and hooks."""

from .amp import cuda_amp_optim_wrapper

__all__ = ['cuda_amp_optim_wrapper']
