"""Hooks, samplers and the runner: they make runs survive failures and explain their errors."""

from .checkpoint import AtomicCheckpointHook, describe_resume_point
from .complete import CompleteWeightsHook, IncompleteWeightsError, LoadWatch
from .non_finite import NonFiniteError, NonFiniteHook
from .optim import XCiTLayerDecayOptimWrapperConstructor, cuda_amp_optim_wrapper
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
    'describe_resume_point',
]
