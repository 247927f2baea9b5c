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
    flat = np.concatenate([[False], mask.astype(bool).ravel(order='F')])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    # Runs alternate between 0 and 1, and start with 0.
    counts = np.diff(np.concatenate([[0], changes, [mask.size]]))
    # From the fourth on, the difference to the run before the last, which is often small.
    numbers = counts.copy()
    numbers[3:] -= counts[1:-2]
    return {'size': list(mask.shape), 'counts': ''.join(map(_characters, numbers.tolist()))}


def _characters(number: int) -> str:
    text = ''
    while True:
        bits = number & (MORE - 1)
        number >>= BITS
        done = number == (-1 if bits & SIGN else 0)
        text += chr(FIRST + (bits if done else bits | MORE))
        if done:
            return text
