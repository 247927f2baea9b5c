"""Pictures of what the network looks at, one function a picture."""

from .class_attention import class_attention
from .cross_covariance import cross_covariance
from .magnitude import query_key_magnitude
from .pyramid import pyramid_features

__all__ = ['class_attention', 'cross_covariance', 'pyramid_features', 'query_key_magnitude']
