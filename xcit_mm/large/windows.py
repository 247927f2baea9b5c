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
        """The height and the width."""
        return self.bottom - self.top, self.right - self.left

    def grown(self, radius: int, size: tuple[int, int]) -> 'Window':
        """Return it with a margin on all sides, as far as a map of this size has one."""
        grown = Window(
            self.top - radius, self.bottom + radius, self.left - radius, self.right + radius
        )
        return grown.common(whole(size))

    def common(self, other: 'Window') -> 'Window':
        """Return what it shares with another window that overlaps it."""
        return Window(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    def within(self, outer: 'Window') -> tuple[slice, slice]:
        """Return where it is in a larger window."""
        rows = slice(self.top - outer.top, self.bottom - outer.top)
        return rows, slice(self.left - outer.left, self.right - outer.left)


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
