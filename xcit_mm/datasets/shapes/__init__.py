"""Draws a dataset of shapes in the layouts of COCO and ADE20k."""

from .draw import CLASSES
from .make import ensure_shapes, make_shapes

__all__ = ['CLASSES', 'ensure_shapes', 'make_shapes']
