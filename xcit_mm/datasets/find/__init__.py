"""Looks at a folder of a user's data: its format, splits, classes and sizes."""

from .coco import find_coco
from .data import RARE, FoundData, Split, explain_nothing_found
from .labels import IGNORED, find_labels

__all__ = [
    'IGNORED',
    'RARE',
    'FoundData',
    'Split',
    'explain_nothing_found',
    'find_coco',
    'find_labels',
]
