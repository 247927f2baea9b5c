"""The layers of the network in plain PyTorch, one per file, each equation of the paper once."""

from .class_attention import ClassAttention, ClassAttentionLayer
from .feed_forward import FeedForward
from .lpi import LPI
from .position import SinusoidalPositionEncoding
from .stem import ConvNorm, ConvPatchEmbed
from .xca import XCA
from .xcit_layer import XCiTLayer

__all__ = [
    'LPI',
    'XCA',
    'ClassAttention',
    'ClassAttentionLayer',
    'ConvNorm',
    'ConvPatchEmbed',
    'FeedForward',
    'SinusoidalPositionEncoding',
    'XCiTLayer',
]
