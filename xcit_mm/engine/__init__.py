"""What a training run uses beside the network: optimizer wrappers, samplers and hooks."""

from .amp import cuda_amp_optim_wrapper
from .checkpoint import AtomicCheckpointHook, what_resume_takes
from .non_finite import NonFiniteError, NonFiniteHook
from .progress import ProgressBarHook
from .randomness import ExactResumeHook, SeededDefaultSampler, SeededInfiniteSampler

__all__ = [
    'AtomicCheckpointHook',
    'ExactResumeHook',
    'NonFiniteError',
    'NonFiniteHook',
    'ProgressBarHook',
    'SeededDefaultSampler',
    'SeededInfiniteSampler',
    'cuda_amp_optim_wrapper',
    'what_resume_takes',
]
