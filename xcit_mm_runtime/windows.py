"""Sliding windows over an image, and how what they find becomes the objects of the image.

Each window is treated as an image of its own. An object that lies in two windows is found twice, or
in parts: :func:`merge_windows` makes one object of that.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Two windows see the same object if their boxes have this IoU where both windows look, or if a box
# that a window cuts off lies inside the other box by this share.
SAME_OBJECT = 0.5
# A box is cut off if it ends this close to a border of its window: pixels, and parts of its side.
BORDER, BORDER_SHARE = 1.0, 0.05


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

    @property
    def slices(self) -> tuple[slice, slice]:
        """The rows and the columns of an array."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def grown(self, radius: int, size: tuple[int, int]) -> 'Window':
        """Return it with a margin on all sides, as far as a map of this size has one."""
        grown = Window(
            self.top - radius, self.bottom + radius, self.left - radius, self.right + radius
        )
        return grown.common(Window(0, size[0], 0, size[1]))

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


def window_starts(length: int, window: int, overlap: int) -> list[int]:
    """Return where windows begin along a side; the last one ends at the border, as in mmseg.

    Args:
        length (int): Of the side, in pixels.
        window (int): Side of the windows.
        overlap (int): What neighbors have in common.
    """
    if not 0 <= overlap < window:
        raise ValueError(f'the overlap must be less than the window, not {overlap} of {window}')
    if length <= window:
        return [0]
    step = window - overlap
    return [min(i * step, length - window) for i in range(-(-(length - window) // step) + 1)]


def cut_windows(size: tuple[int, int], window: int, overlap: int) -> list[Window]:
    """Return all windows of an image, row by row.

    Args:
        size (tuple[int, int]): Height and width of the image.
        window (int): Side of the windows; those of a smaller image are as large as the image.
        overlap (int): What neighbors have in common.
    """
    return [
        Window(top, min(top + window, size[0]), left, min(left + window, size[1]))
        for top in window_starts(size[0], window, overlap)
        for left in window_starts(size[1], window, overlap)
    ]


class CroppedMask(NamedTuple):
    """The mask of an object, without most of the background around it.

    Args:
        top (int): The first row.
        left (int): The first column.
        pixels (np.ndarray): bool (h, w).
    """

    top: int
    left: int
    pixels: np.ndarray

    @classmethod
    def crop(cls, mask: np.ndarray, top: int = 0, left: int = 0) -> 'CroppedMask':
        """Crop a mask.

        Args:
            mask (np.ndarray): bool (H, W).
            top (int): The row of the image where it begins. Defaults to 0.
            left (int): The column of the image where it begins. Defaults to 0.
        """
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        if not len(rows):
            return cls(top, left, np.zeros((0, 0), bool))
        y, x = int(rows[0]), int(columns[0])
        # A copy: a view would keep the masks of the whole window.
        pixels = mask[y : rows[-1] + 1, x : columns[-1] + 1].astype(bool)
        return cls(top + y, left + x, pixels)

    @classmethod
    def unite(cls, masks: Sequence['CroppedMask']) -> 'CroppedMask':
        """Return the mask of everything that is in one of several masks."""
        masks = [mask for mask in masks if mask.pixels.size] or list(masks[:1])
        if len(masks) == 1:
            return masks[0]
        corners = np.array([(m.top, m.left) for m in masks])
        ends = corners + [m.pixels.shape for m in masks]
        (top, left), (bottom, right) = corners.min(axis=0).tolist(), ends.max(axis=0).tolist()
        pixels = np.zeros((bottom - top, right - left), bool)
        for mask in masks:
            y, x = mask.top - top, mask.left - left
            pixels[y : y + mask.pixels.shape[0], x : x + mask.pixels.shape[1]] |= mask.pixels
        return cls(top, left, pixels)

    def paste(self, canvas: np.ndarray, scale: tuple[float, float] = (1.0, 1.0)) -> None:
        """Set the pixels of the object in the mask of an image.

        Args:
            canvas (np.ndarray): bool (H, W), changed in place.
            scale (tuple[float, float]): Height and width of what was cut into windows, in those of
                the canvas. Defaults to 1.
        """
        ranges = []
        for axis, first in enumerate((self.top, self.left)):
            # The center of each pixel of the canvas lies in a pixel of the mask, or outside it.
            centers = (np.arange(canvas.shape[axis]) + 0.5) * scale[axis] - first
            inside = np.flatnonzero((centers >= 0) & (centers < self.pixels.shape[axis]))
            ranges.append((inside, centers[inside].astype(int)))
        (rows, own_rows), (columns, own_columns) = ranges
        canvas[np.ix_(rows, columns)] = self.pixels[np.ix_(own_rows, own_columns)]


@dataclass
class WindowDetections:
    """What was found in a window, or in all windows of an image.

    Args:
        boxes (np.ndarray): float32 (D, 4): x1 y1 x2 y2.
        scores (np.ndarray): float32 (D,).
        labels (np.ndarray): int64 (D,), indices of classes.
        masks (list[CroppedMask], optional): One per box; None for models that predict only boxes.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[CroppedMask] | None

    @classmethod
    def of_window(
        cls,
        window: Window,
        boxes: np.ndarray,
        scores: np.ndarray,
        labels: np.ndarray,
        masks: np.ndarray | None = None,
    ) -> 'WindowDetections':
        """Return what was found in a window, in pixels of the image.

        Args:
            window (Window): The window.
            boxes (np.ndarray): In pixels of the window.
            scores (np.ndarray): As above.
            labels (np.ndarray): As above.
            masks (np.ndarray, optional): bool (D, height, width of the window). Defaults to None.
        """
        top, left = window.top, window.left
        shift = np.array([left, top, left, top], np.float32)
        cropped = None if masks is None else [CroppedMask.crop(m, top, left) for m in masks]
        return cls(boxes + shift, scores, labels, cropped)

    def above(self, score: float) -> 'WindowDetections':
        """Return those that score above a threshold."""
        kept = np.flatnonzero(self.scores > score)
        masks = None if self.masks is None else [self.masks[i] for i in kept]
        return WindowDetections(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

    def rescale(
        self, size: tuple[int, int], scale: tuple[float, float] = (1.0, 1.0)
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the boxes and the masks (D, H, W) in pixels of the image as given.

        Args:
            size (tuple[int, int]): Height and width of the image as given.
            scale (tuple[float, float]): Height and width of what was cut into windows, in those of
                the image. Defaults to 1.
        """
        boxes = self.boxes / np.array([scale[1], scale[0]] * 2, np.float32)
        if self.masks is None:
            return boxes, None
        masks = np.zeros((len(self.masks), *size), bool)
        for mask, canvas in zip(self.masks, masks, strict=True):
            mask.paste(canvas, scale)
        return boxes, masks


def merge_windows(
    windows: Sequence[Window],
    found: Sequence[WindowDetections],
    size: tuple[int, int],
    limit: int | None = None,
) -> WindowDetections:
    """Merge what windows found into the objects of the image, sorted by descending score.

    Two windows see the same object if their boxes agree in the part of the image that both see, or
    if a box that one window cuts off lies inside the other window's, and if no other boxes of the
    two agree better. If a window shows the object whole, its box and mask are kept. Else the parts
    are united, over any number of windows. Non-maximum suppression would keep one of the parts, and
    drop small objects in front of large ones.

    Args:
        windows (Sequence[Window]): The windows.
        found (Sequence[WindowDetections]): What each of them found, in pixels of the image.
        size (tuple[int, int]): Height and width of the image.
        limit (int, optional): The largest number of objects. Defaults to None.
    """
    views = _Views(windows, found, size)
    is_left = np.ones(len(views.boxes), bool)
    groups: list[list[int]] = []
    for i in np.argsort(-views.scores, kind='stable').tolist():
        if not is_left[i]:
            continue
        if len(groups) == limit:
            break
        is_left[i] = False
        group = [i]
        for member in group:  # which grows: a long object goes on from window to window
            taken = views.sources[group]
            others = [
                other
                for other in views.same_object(member)
                if is_left[other] and views.sources[other] not in taken
            ]
            is_left[others] = False
            group += others
        groups.append(group)
    return views.unite(groups)


class _Views:
    """All boxes that windows found.

    Args:
        windows (Sequence[Window]): The windows.
        found (Sequence[WindowDetections]): What each of them found, in pixels of the image.
        size (tuple[int, int]): Height and width of the image.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        found: Sequence[WindowDetections],
        size: tuple[int, int],
    ) -> None:
        self.boxes, self.scores, self.labels = (
            np.concatenate([getattr(one, name) for one in found])
            for name in ('boxes', 'scores', 'labels')
        )
        self.masks = None
        if found[0].masks is not None:
            self.masks = [mask for one in found for mask in one.masks or ()]
        counts = [len(one.scores) for one in found]
        self.sources = np.repeat(np.arange(len(windows)), counts)
        self.areas = np.array([(w.left, w.top, w.right, w.bottom) for w in windows], np.float32)
        starts = np.cumsum([0, *counts])
        self.of_window = [np.arange(*ends) for ends in itertools.pairwise(starts.tolist())]
        overlaps = _extents(_common(self.areas[:, None], self.areas)) > 0
        np.fill_diagonal(overlaps, False)
        self.neighbors = [np.flatnonzero(row) for row in overlaps]
        # Whether a box ends at a border of its window that is not one of the image.
        areas, image = self.areas[self.sources], (0, 0, size[1], size[0])
        sides = np.tile(self.boxes[:, 2:] - self.boxes[:, :2], 2)
        is_close = np.abs(self.boxes - areas) <= BORDER + BORDER_SHARE * sides
        self.is_cut = (is_close & (areas != np.array(image))).any(axis=1)

    def same_object(self, one: int) -> list[int]:
        """Return the boxes of other windows, at most one of each, that show the same object."""
        found = []
        windows = self.neighbors[self.sources[one]]
        windows = windows[_extents(_common(self.boxes[one], self.areas[windows])) > 0]
        for window in windows.tolist():
            other, is_same = self._best(one, window)
            # Of two boxes, each must be the best for the other.
            if is_same and self._best(other, self.sources[one])[0] == one:
                found.append(other)
        return found

    def _best(self, one: int, window: int) -> tuple[int, bool]:
        """Return the box of a window that agrees best with a box, and if it is the same object."""
        others = self.of_window[window]
        others = others[self.labels[others] == self.labels[one]]
        if not len(others):
            return -1, False
        box, boxes = self.boxes[one], self.boxes[others]
        seen = _common(self.areas[self.sources[one]], self.areas[window])
        shared = _extents(_common(box, boxes))
        own, other = _extents(_common(box, seen)), _extents(_common(boxes, seen))
        iou = shared / np.maximum(own + other - shared, 1e-6)
        best = int(iou.argmax())
        found, part = int(others[best]), shared[best]
        is_part = any(
            self.is_cut[i] and part >= SAME_OBJECT * _extents(self.boxes[i]) > 0
            for i in (one, found)
        )
        return found, bool(iou[best] >= SAME_OBJECT or is_part)

    def unite(self, groups: Sequence[Sequence[int]]) -> WindowDetections:
        """Return one object for each group of boxes, the best of which is the first."""
        boxes, masks = [], []
        for group in groups:
            whole = [i for i in group if not self.is_cut[i]]
            parts = [max(whole, key=self.scores.__getitem__)] if whole else list(group)
            boxes.append([*self.boxes[parts, :2].min(axis=0), *self.boxes[parts, 2:].max(axis=0)])
            if self.masks is not None:
                masks.append(CroppedMask.unite([self.masks[i] for i in parts]))
        first = [group[0] for group in groups]
        return WindowDetections(
            np.array(boxes, np.float32).reshape(-1, 4),
            self.scores[first],
            self.labels[first],
            None if self.masks is None else masks,
        )


def _common(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the boxes that two boxes, or sets of boxes, have in common."""
    low = np.maximum(one[..., :2], other[..., :2])
    return np.concatenate([low, np.minimum(one[..., 2:], other[..., 2:])], axis=-1)


def _extents(boxes: np.ndarray) -> np.ndarray:
    """Return the areas of boxes; 0 for those that end before they begin."""
    return (boxes[..., 2:] - boxes[..., :2]).clip(min=0).prod(axis=-1)
