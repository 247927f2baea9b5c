"""Images without a size limit: over strips and tiles on one machine, or over many processes."""

from .images import open_image
from .processes import (
    SharedDefaultSampler,
    SharedInfiniteSampler,
    SpreadBackbone,
    SpreadXCiT,
)
from .whole import WholeImage

__all__ = [
    'SharedDefaultSampler',
    'SharedInfiniteSampler',
    'SpreadBackbone',
    'SpreadXCiT',
    'WholeImage',
    'open_image',
]
