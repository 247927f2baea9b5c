"""Resizes images as mmcv does, and normalizes them as mmdet and mmseg do, to the bit."""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np


def resized_size(size: tuple[int, int], resize: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the width and height of an image after resizing.

    Args:
        size (tuple[int, int]): Width and height before.
        resize (Mapping, optional): ``scale`` (width and height, in any order if the ratio is kept)
            and ``keep_ratio``, or ``scale_factor``; None for no resizing.
    """
    if not resize:
        return size
    if resize.get('scale') is None:
        factors = np.broadcast_to(resize['scale_factor'], 2).tolist()
    else:
        scale = np.broadcast_to(resize['scale'], 2).tolist()
        if not resize.get('keep_ratio'):
            return scale[0], scale[1]
        factor = min(max(scale) / max(size), min(scale) / min(size))
        factors = [factor, factor]
    width, height = (int(side * factor + 0.5) for side, factor in zip(size, factors, strict=True))
    return width, height


def resize_image(image: np.ndarray, resize: Mapping[str, Any] | None) -> np.ndarray:
    """Resize an image bilinearly, as mmcv does.

    Args:
        image (np.ndarray): uint8 (H, W, 3).
        resize (Mapping, optional): As for :func:`resized_size`.
    """
    height, width = image.shape[:2]
    size = resized_size((width, height), resize)
    if size == (width, height):
        return image
    if min(size) < 1:
        raise ValueError(f'too thin to be resized to {size[0]}x{size[1]}')
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


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
