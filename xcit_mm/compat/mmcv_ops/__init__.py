"""Replaces mmcv's compiled operators, where they are missing, with torchvision's and PyTorch's.

Obstacle: mmcv 2.1 has ready-made wheels for old PyTorch only. On today's it has to be compiled,
which takes a compiler and minutes, and fails on many machines. ``mmcv-lite`` is the same package
without the compiled module ``mmcv._ext``, and mmdet cannot be imported with it.

What this does: gives :mod:`.ext` the name ``mmcv._ext``, before mmcv imports it. A compiled module
is always preferred, and nothing happens where torchvision's operators cannot be loaded.
"""

import importlib.util
import sys

from .. import torchvision_ops


def apply() -> bool:
    """Provide ``mmcv._ext`` if there is none; returns whether that was possible and necessary."""
    if 'mmcv._ext' in sys.modules or importlib.util.find_spec('mmcv._ext'):
        return False
    if not torchvision_ops.load():
        return False
    from . import ext

    sys.modules['mmcv._ext'] = ext
    return True
