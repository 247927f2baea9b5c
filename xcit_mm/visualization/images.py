"""Images as the network expects them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xcit_mm_runtime.inputs import to_8_bit

Preprocess = Callable[[np.ndarray], Tensor]


def as_rgb(image: np.ndarray) -> np.ndarray:
    """An image as RGB, uint8 (H, W, 3).

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
    """RGB images (H, W, 3) to normalized tensors (1, 3, H, W).

    Args:
        mean (tuple[float, ...]): Of the three channels, 0...255. Defaults to ImageNet's.
        std (tuple[float, ...]): Likewise.
        rgb (bool): Whether the network expects RGB, not BGR. Defaults to True.
    """

    mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    std: tuple[float, ...] = (58.395, 57.12, 57.375)
    rgb: bool = True

    def __call__(self, image: np.ndarray) -> Tensor:
        planes = torch.from_numpy(image if self.rgb else image[..., ::-1].copy()).permute(2, 0, 1)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        normalized = planes.to(torch.float32, memory_format=torch.contiguous_format)
        return normalized.sub_(mean).div_(std)[None]
