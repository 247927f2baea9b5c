"""Runs detectors and segmentors on users' images, and writes and draws what they predict."""

from xcit_mm_runtime.inputs import (
    ResultNames,
    find_images,
    find_sources,
    is_video,
    left_out,
    read_image,
)

from .ids import AnnotationFile
from .predictions import results_path
from .predictors import TASKS, Predictor, build_inferencer, load_predictor
from .run import infer, merge
from .shards import is_unfinished

__all__ = [
    'TASKS',
    'AnnotationFile',
    'Predictor',
    'ResultNames',
    'build_inferencer',
    'find_images',
    'find_sources',
    'infer',
    'is_unfinished',
    'is_video',
    'left_out',
    'load_predictor',
    'merge',
    'read_image',
    'results_path',
]
