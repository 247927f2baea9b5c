"""Windows of an image or a map, and how an image is cut into them."""

from collections.abc import Iterator
from typing import NamedTuple


class Window(NamedTuple):
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right``, the last ones exclusive."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    def grown(self, radius: int, size: tuple[int, int]) -> 'Window':
        """With a margin on all sides, as far as a map of this size has one."""
        return Window(
            max(self.top - radius, 0),
            min(self.bottom + radius, size[0]),
            max(self.left - radius, 0),
            min(self.right + radius, size[1]),
        )

    def within(self, outer: 'Window') -> tuple[slice, slice]:
        """Where it is in a larger window."""
        rows = slice(self.top - outer.top, self.bottom - outer.top)
        return rows, slice(self.left - outer.left, self.right - outer.left)


def whole(size: tuple[int, int]) -> Window:
    """The window that is a whole map."""
    return Window(0, size[0], 0, size[1])


def pieces(length: int, step: int) -> Iterator[tuple[int, int]]:
    """First and last index, exclusive, of pieces of a length."""
    for start in range(0, length, step):
        yield start, min(start + step, length)


def tiles(size: tuple[int, int], side: int) -> Iterator[Window]:
    """Square tiles of a map, row by row; those at the right and the bottom may be smaller."""
    for rows in pieces(size[0], side):
        for columns in pieces(size[1], side):
            yield Window(*rows, *columns)
