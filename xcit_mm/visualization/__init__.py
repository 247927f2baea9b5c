"""Pictures of what the network looks at, one function per picture."""

import warnings
from typing import Any

from .class_attention import class_attention
from .cross_covariance import CrossCovariance, cross_covariance
from .drawing import as_array
from .gradient import gradient_maps
from .images import Normalize
from .load import Subject, load_subject
from .magnitude import query_key_magnitude
from .pyramid import PyramidLevel, pyramid_features

__all__ = [
    'CrossCovariance',
    'Normalize',
    'PyramidLevel',
    'Subject',
    'as_array',
    'class_attention',
    'cross_covariance',
    'gradient_maps',
    'load_subject',
    'pyramid_features',
    'query_key_magnitude',
]

RENAMED = {'Normalise': 'Normalize', 'Level': 'PyramidLevel'}


def __getattr__(name: str) -> Any:
    """Find what was renamed, with a warning."""
    if name not in RENAMED:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    message = f'xcit_mm.visualization.{name} is called {RENAMED[name]} now.'
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return globals()[RENAMED[name]]
