"""The base without PyTorch: reads images, runs exported models, draws and writes predictions.

Nothing here imports ``xcit_mm``, PyTorch or OpenMMLab. Images are BGR, as OpenCV reads them.
"""

from .errors import ImageError, ModelError
from .inputs import read_image
from .model import Model, load
from .results import Detections, Segmentation

__all__ = [
    'Detections',
    'ImageError',
    'Model',
    'ModelError',
    'Segmentation',
    'load',
    'read_image',
]
