"""Resizes images as mmcv does, and normalizes them as mmdet and mmseg do, to the bit."""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np


def resize_image(image: np.ndarray, resize: Mapping[str, Any] | None) -> np.ndarray:
    """Resize an image bilinearly, as mmcv does.

    Args:
        image (np.ndarray): uint8 (H, W, 3).
        resize (Mapping, optional): ``scale`` (width and height, in any order if the ratio is kept)
            and ``keep_ratio``, or ``scale_factor``; None for no resizing.
    """
    if not resize:
        return image
    sides = image.shape[1::-1]
    if resize.get('scale') is None:
        factors = resize['scale_factor']
    else:
        scale = np.broadcast_to(resize['scale'], 2)
        factors = scale / sides
        if resize.get('keep_ratio'):
            factors = min(max(scale) / max(sides), min(scale) / min(sides))
    pairs = zip(sides, np.broadcast_to(factors, 2).tolist(), strict=True)
    width, height = (int(side * factor + 0.5) for side, factor in pairs)
    if (width, height) == sides:
        return image
    if min(width, height) < 1:
        raise ValueError(f'too thin to be resized to {width}x{height}')
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)


def to_planes(
    images: np.ndarray,
    channel_order: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: str,
) -> np.ndarray:
    """Return images as the graph takes them, (B, C, H, W).

    Args:
        images (np.ndarray): uint8 (B, H, W, C), BGR.
        channel_order (str): ``rgb`` or ``bgr``, that of the graph. Of images with another number
            of channels, the order stays.
        mean (Sequence[float], optional): Subtracted from the channels, in the graph's order.
        std (Sequence[float], optional): What they are then divided by.
        dtype (str): ``uint8`` or ``float32``.
    """
    ordered = images[..., ::-1] if channel_order == 'rgb' and images.shape[3] == 3 else images
    planes = np.ascontiguousarray(ordered.transpose(0, 3, 1, 2), dtype=dtype)
    if mean is not None and std is not None:
        planes -= np.array(mean, np.float32)[:, None, None]
        planes /= np.array(std, np.float32)[:, None, None]
    return planes
