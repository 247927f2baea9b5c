"""COCO's run-length encoding of masks."""

from typing import Any

import numpy as np

# Each character holds 5 bits of a number, and one that says whether more follow.
BITS, MORE, SIGN, FIRST = 5, 0x20, 0x10, 48


def encode(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask as pycocotools does, with the counts as text.

    Args:
        mask (np.ndarray): bool (H, W).
    """
    return encode_part(0, 0, mask, mask.shape)


def encode_part(top: int, left: int, mask: np.ndarray, size: tuple[int, ...]) -> dict[str, Any]:
    """Encode the mask of an image of which only a part is given; the rest is 0.

    Args:
        top (int): The row where the part begins.
        left (int): The column where it begins.
        mask (np.ndarray): bool (h, w), the part.
        size (tuple[int, int]): Height and width of the image.
    """
    # Column by column. A part of the columns ends with a row of zeros or, if it reaches both
    # borders, is all of the column.
    is_whole = len(mask) == size[0]
    rows = mask.astype(bool) if is_whole else np.pad(mask.astype(bool), ((0, 1), (0, 0)))
    flat = np.concatenate([[False], rows.ravel(order='F'), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    columns, row = np.divmod(changes, max(len(rows), 1))
    places = (left + columns) * size[0] + top + row
    area = size[0] * size[1]
    # Runs alternate between 0 and 1, and start with 0.
    counts = np.diff(np.concatenate([[0], places[places < area], [area]]))
    # From the fourth on, the difference to the run before the last, which is often small.
    numbers = counts.copy()
    numbers[3:] -= counts[1:-2]
    return {'size': list(size), 'counts': ''.join(map(_characters, numbers.tolist()))}


def _characters(number: int) -> str:
    text = ''
    while True:
        bits = number & (MORE - 1)
        number >>= BITS
        done = number == (-1 if bits & SIGN else 0)
        text += chr(FIRST + (bits if done else bits | MORE))
        if done:
            return text
