"""Hooks, samplers and the runner: they make runs survive failures and explain their errors."""

from .amp import cuda_amp_optim_wrapper
from .checkpoint import AtomicCheckpointHook, what_resume_takes
from .complete import CompleteWeightsHook, IncompleteWeightsError, LoadWatch
from .layer_decay import XCiTLayerDecayOptimWrapperConstructor
from .non_finite import NonFiniteError, NonFiniteHook
from .progress import ProgressBarHook
from .randomness import (
    ExactIterBasedTrainLoop,
    ExactResumeHook,
    SeededBatchSampler,
    SeededDefaultSampler,
    SeededInfiniteSampler,
    SeededRepeatSampler,
)
from .sharding import FullySharded

__all__ = [
    'AtomicCheckpointHook',
    'CompleteWeightsHook',
    'ExactIterBasedTrainLoop',
    'ExactResumeHook',
    'FullySharded',
    'IncompleteWeightsError',
    'LoadWatch',
    'NonFiniteError',
    'NonFiniteHook',
    'ProgressBarHook',
    'SeededBatchSampler',
    'SeededDefaultSampler',
    'SeededInfiniteSampler',
    'SeededRepeatSampler',
    'XCiTLayerDecayOptimWrapperConstructor',
    'cuda_amp_optim_wrapper',
    'what_resume_takes',
]
