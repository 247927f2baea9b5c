"""Pictures of what the network looks at, one function per picture."""

from .class_attention import class_attention
from .cross_covariance import CrossCovariance, cross_covariance
from .drawing import as_array
from .images import Normalize
from .load import Subject, load_subject
from .magnitude import query_key_magnitude
from .pyramid import Level, pyramid_features

__all__ = [
    'CrossCovariance',
    'Level',
    'Normalize',
    'Subject',
    'as_array',
    'class_attention',
    'cross_covariance',
    'load_subject',
    'pyramid_features',
    'query_key_magnitude',
]
