"""Turns the small masks of a mask head into masks of the whole image."""

import numpy as np


def paste(
    masks: np.ndarray, boxes: np.ndarray, size: tuple[int, int], threshold: float | None
) -> np.ndarray:
    """Stretch each mask over its box, as mmdet does.

    Args:
        masks (np.ndarray): (D, M, M), probabilities.
        boxes (np.ndarray): float32 (D, 4), x1 y1 x2 y2 in pixels.
        size (tuple[int, int]): Height and width of the image.
        threshold (float, optional): The lowest probability that belongs to the object; None for
            the probabilities themselves.

    Returns:
        np.ndarray: (D, height, width), bool, or float32 without a threshold.
    """
    height, width = size
    kind = np.float32 if threshold is None else bool
    pasted = np.zeros((len(masks), height, width), kind)
    for i, (mask, (x1, y1, x2, y2)) in enumerate(zip(masks, boxes, strict=True)):
        # Bilinear interpolation in rows and columns, one after the other.
        top, rows = _weights(y1, y2, mask.shape[0], height)
        left, columns = _weights(x1, x2, mask.shape[1], width)
        values = rows @ mask.astype(np.float32) @ columns.T
        part = pasted[i, top : top + len(rows), left : left + len(columns)]
        part[:] = values if threshold is None else values >= threshold
    return pasted


def _weights(low: float, high: float, cells: int, length: int) -> tuple[int, np.ndarray]:
    """Return the weight of each cell of a mask for each pixel near the box, along one axis.

    Args:
        low (float): Where the box starts.
        high (float): Where it ends.
        cells (int): Number of cells of the mask.
        length (int): Number of pixels of the image.

    Returns:
        tuple: The first of the pixels, and the weights (pixels, cells).
    """
    first = max(int(np.floor(low)) - 1, 0)
    last = max(min(int(np.ceil(high)) + 1, length), first)
    centers = np.arange(first, last, dtype=np.float32) + np.float32(0.5)
    with np.errstate(divide='ignore', invalid='ignore'):
        position = (centers - low) / np.float32(high - low) * cells - np.float32(0.5)
    # A box without extent.
    position = np.where(np.isfinite(position), position, np.float32((cells - 1) / 2))
    distance = np.abs(position[:, None] - np.arange(cells, dtype=np.float32))
    return first, np.maximum(1 - distance, 0)
