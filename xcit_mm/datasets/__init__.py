"""The embedded data set, in COCO's and in ADE20k's own layout."""

from .make import ensure_shapes, make_shapes
from .shapes import CLASSES

__all__ = ['CLASSES', 'ensure_shapes', 'make_shapes']
