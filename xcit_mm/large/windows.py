"""How an image or a map is cut into pieces that do not overlap."""

from collections.abc import Iterator

from xcit_mm_runtime.windows import Window

__all__ = ['Window', 'pieces', 'tiles', 'whole']


def whole(size: tuple[int, int]) -> Window:
    """Return the window that is a whole map."""
    return Window(0, size[0], 0, size[1])


def pieces(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index, exclusive, of pieces of a length."""
    for start in range(0, length, step):
        yield start, min(start + step, length)


def tiles(size: tuple[int, int], side: int) -> Iterator[Window]:
    """Yield square tiles of a map, row by row; the last ones may be smaller."""
    for rows in pieces(size[0], side):
        for columns in pieces(size[1], side):
            yield Window(*rows, *columns)
