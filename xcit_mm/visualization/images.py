"""Images as the network expects them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.inputs import to_8_bit
from xcit_mm_runtime.preprocess import to_planes

from ..weights.inputs import MEAN, STD

Preprocess = Callable[[np.ndarray], Tensor]


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Return an image as RGB, uint8 (H, W, 3).

    Args:
        image (np.ndarray): uint8 or uint16; grayscale (H, W) or (H, W, 1), RGB, or RGB and alpha,
            which is ignored, as in detectors.
    """
    if not isinstance(image, np.ndarray) or image.dtype not in (np.uint8, np.uint16):
        kind = getattr(image, 'dtype', type(image).__name__)
        raise TypeError(f'an image must be an array of uint8 or uint16, not {kind}')
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or 0 in image.shape:
        raise ValueError(
            'an image must have the shape (height, width) or (height, width, 1, 3 or 4), not '
            f'{image.shape}'
        )
    image = to_8_bit(image, 16)
    return image.repeat(3, axis=2) if image.shape[2] == 1 else image[..., :3]


@dataclass(frozen=True)
class Normalize:
    """Turns RGB images (H, W, 3) into normalized tensors (1, 3, H, W).

    Args:
        mean (tuple[float, ...]): Of the three channels, 0...255. Defaults to ImageNet's.
        std (tuple[float, ...]): Likewise.
        rgb (bool): Whether the network expects RGB, not BGR. Defaults to True.
    """

    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    rgb: bool = True

    def __call__(self, image: np.ndarray) -> Tensor:
        order, bgr = 'rgb' if self.rgb else 'bgr', image[..., ::-1]
        return torch.from_numpy(to_planes(bgr[None], order, self.mean, self.std, 'float32'))
