"""Image retrieval, as in the paper's appendix: finds the images that are like a given one."""

from .descriptors import Settings
from .index import Index, build_index

__all__ = ['Index', 'Settings', 'build_index']
