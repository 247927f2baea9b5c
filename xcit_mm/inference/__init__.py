"""Runs detectors and segmentors on users' images, and writes and draws what they predict."""

from .inputs import find_images, find_sources, is_video, left_out, read_image, result_names
from .journal import FILE as UNFINISHED_FILE
from .predictions import results_path
from .run import build_inferencer, infer, predict

__all__ = [
    'UNFINISHED_FILE',
    'build_inferencer',
    'find_images',
    'find_sources',
    'infer',
    'is_video',
    'left_out',
    'predict',
    'read_image',
    'result_names',
    'results_path',
]
