"""Work on pieces that fit the processor's cache.

A tensor over all tokens of a large image is larger than any cache, and fresh memory for it costs
page faults on top. Over chunks of tokens, or strips of rows, the same work stays in the cache.
"""

import torch
from torch import Tensor

# Elements of the widest tensor of a chunk: 4 MB of float32 stay in a CPU's cache, while a GPU needs
# work for all of its cores.
CHUNK_ELEMENTS = {'cpu': 2**20}
CHUNK_ELEMENTS_OTHER = 2**26
# Fewer tokens would make thin products; fewer rows would spend more on the rows beyond a strip.
MIN_TOKENS = 64
MIN_ROWS = 8


def token_chunks(tokens: Tensor, width: int) -> list[slice]:
    """Cut the first dimension of tokens into slices.

    Args:
        tokens (Tensor): (N, d).
        width (int): Width of the widest tensor that is computed from them.
    """
    length = _piece_length(len(tokens), width, tokens.device, MIN_TOKENS)
    return [slice(start, start + length) for start in range(0, len(tokens), length)]


def batch_chunks(tokens: Tensor) -> list[tuple[slice, slice]]:
    """Cut the first two dimensions of tokens: samples, and tokens of these samples.

    On a CPU one sample after another, elsewhere all samples together.

    Args:
        tokens (Tensor): (B, N, d).
    """
    batch, _, dims = tokens.shape
    together = 1 if tokens.device.type == 'cpu' else max(batch, 1)
    return [
        (slice(first, first + together), chunk)
        for first in range(0, batch, together)
        for chunk in token_chunks(tokens[first], together * dims)
    ]


def sample_chunks(x: Tensor, width: int) -> list[tuple[slice, slice]]:
    """Cut the first two dimensions of tokens into whole samples or parts of one sample.

    So a chunk of contiguous tokens is contiguous.

    Args:
        x (Tensor): (B, N, d).
        width (int): Width of the widest tensor that is computed from them.
    """
    batch, num_tokens, _ = x.shape
    length = _piece_length(batch * num_tokens, width, x.device, MIN_TOKENS)
    if batch and length < num_tokens:
        chunks = token_chunks(x[0], width)
        return [(slice(i, i + 1), chunk) for i in range(batch) for chunk in chunks]
    together = max(length // max(num_tokens, 1), 1)
    return [(slice(i, i + together), slice(None)) for i in range(0, batch, together)]


def strips(num_rows: int, width: int, device: torch.device) -> list[tuple[int, int]]:
    """Return the first and the last row, exclusive, of each strip of a map.

    Args:
        num_rows (int): Rows of the map.
        width (int): Elements per row in the widest tensor computed from it.
        device (torch.device): Where the work is done.
    """
    length = _piece_length(num_rows, width, device, MIN_ROWS)
    starts = range(0, num_rows, length)
    return [(start, min(start + length, num_rows)) for start in starts]


def _piece_length(total: int, width: int, device: torch.device, minimum: int) -> int:
    """Return the length of all pieces but the last.

    Pieces are as equal as one length allows, so that the last one is rarely a thin product.
    """
    elements = CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS_OTHER)
    longest = max(minimum, elements // max(width, 1))  # an empty batch has no width
    count = max(-(-total // longest), 1)
    return max(-(-total // count), 1)
