"""Runs detectors and segmentors on users' images, and writes and draws what they predict."""

from xcit_mm_deploy.inputs import (
    find_images,
    find_sources,
    is_video,
    left_out,
    read_image,
    result_names,
)

from .ids import AnnotationFile
from .journal import FILE as UNFINISHED_FILE
from .predictions import results_path
from .predictors import TASKS, Predictor, build_inferencer, load_predictor
from .run import infer

__all__ = [
    'TASKS',
    'UNFINISHED_FILE',
    'AnnotationFile',
    'Predictor',
    'build_inferencer',
    'find_images',
    'find_sources',
    'infer',
    'is_video',
    'left_out',
    'load_predictor',
    'read_image',
    'result_names',
    'results_path',
]
