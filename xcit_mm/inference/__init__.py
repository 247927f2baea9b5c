"""Runs detectors and segmentors on users' images, and writes and draws what they predict."""

from .ids import AnnotationFile
from .loop import infer, merge
from .predictors import TASKS, load_model, load_predictor
from .shards import is_unfinished

__all__ = [
    'TASKS',
    'AnnotationFile',
    'infer',
    'is_unfinished',
    'load_model',
    'load_predictor',
    'merge',
]
