"""Runs detectors and segmentors on users' images, and writes and draws what they predict."""

from .inputs import find_images, read_image, result_names
from .predictions import results_path
from .run import build_inferencer, infer

__all__ = [
    'build_inferencer',
    'find_images',
    'infer',
    'read_image',
    'result_names',
    'results_path',
]
