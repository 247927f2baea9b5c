"""The objects of a dataset in numbers: their sizes, how many images have, how anchors fit them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The pyramid of mmdet's two-stage detectors.
STRIDES = (4, 8, 16, 32, 64)
# Objects that anchors are compared with.
COMPARED = 100_000


@dataclass
class Objects:
    """The sizes of images and of the boxes in them.

    Args:
        images (np.ndarray): Width and height of each image, (N, 2).
        boxes (np.ndarray): Width and height of the box of each object, (M, 2).
        owners (np.ndarray): The index of the image of each object, (M,).
    """

    images: np.ndarray
    boxes: np.ndarray
    owners: np.ndarray

    @classmethod
    def read(cls, content: Mapping[str, Any], classes: Iterable[str]) -> 'Objects':
        """Read what mmdet trains on: objects of the classes that are not crowds.

        Args:
            content (dict): As returned by :func:`xcit_mm_runtime.coco.read_coco`; entries that are
                not usable are left out.
            classes (Iterable[str]): Names of the classes.
        """
        names = set(classes)
        kinds = {c.get('id') for c in content['categories'] if c.get('name') in names}
        sizes = {
            image.get('id'): (image.get('width'), image.get('height'))
            for image in content['images']
        }
        index = {
            number: i
            for i, number in enumerate(n for n, size in sizes.items() if _are_positive(size))
        }
        found = [
            (index[one['image_id']], *one['bbox'][2:])
            for one in content['annotations']
            if one.get('image_id') in index
            and one.get('category_id') in kinds
            and not one.get('iscrowd')
            and isinstance(one.get('bbox'), list)
            and len(one['bbox']) == 4
            and _are_positive(one['bbox'][2:])
        ]
        images = np.array([sizes[number] for number in index], float).reshape(-1, 2)
        rows = np.array(found, float).reshape(-1, 3)
        return cls(images, rows[:, 1:], rows[:, 0].astype(int))

    @classmethod
    def join(cls, parts: Iterable['Objects']) -> 'Objects':
        """Return the objects of several datasets as one."""
        parts = list(parts)
        starts = np.cumsum([0, *(len(part.images) for part in parts)])
        return cls(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([p.owners + start for p, start in zip(parts, starts, strict=False)]),
        )

    @property
    def counts(self) -> np.ndarray:
        """The number of objects of each image, (N,)."""
        return np.bincount(self.owners, minlength=len(self.images))

    def scaled(self, resize: Mapping[str, Any] | None) -> 'Objects':
        """Return images and objects as they are after a step of a pipeline.

        Args:
            resize (Mapping, optional): As returned by :func:`..configs.resizing`; None for no step.
        """
        factors = np.ones_like(self.images)
        if resize is not None and 'scale_factor' in resize:
            factors *= resize['scale_factor']
        elif resize is not None:
            scale = np.array(resize['scale'], float)
            factors = scale / self.images
            if resize['keep_ratio']:
                sides = np.sort(scale) / np.sort(self.images, axis=1)
                factors = np.repeat(sides.min(axis=1, keepdims=True), 2, axis=1)
        return Objects(self.images * factors, self.boxes * factors[self.owners], self.owners)

    @property
    def sides(self) -> np.ndarray:
        """The side of the square with the area of each box, (M,)."""
        return np.sqrt(self.boxes.prod(axis=1))


def _are_positive(numbers: Sequence[Any]) -> bool:
    return all(type(number) in (int, float) and 0 < number < math.inf for number in numbers)


def anchor_shapes(
    scales: Iterable[float], ratios: Iterable[float], strides: Iterable[int] = STRIDES
) -> np.ndarray:
    """Return width, height and stride of each anchor of mmdet's ``AnchorGenerator``, (K, 3).

    Args:
        scales (Iterable[float]): Sides of square anchors in strides.
        ratios (Iterable[float]): Heights in widths.
        strides (Iterable[int]): Of the levels of the pyramid.
    """
    return np.array(
        [
            (stride * scale / ratio**0.5, stride * scale * ratio**0.5, stride)
            for stride in strides
            for scale in scales
            for ratio in ratios
        ]
    )


def best_overlaps(boxes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Return the IoU of each object with the anchor that fits it best, (M,).

    Anchors are a stride apart, so the nearest center is a quarter of the stride away in each
    direction, on average. That is the distance that is assumed.

    Args:
        boxes (np.ndarray): Widths and heights of objects, (M, 2); of many, a part is used.
        anchors (np.ndarray): Widths, heights and strides of anchors, (K, 3).
    """
    boxes = boxes[:: len(boxes) // COMPARED + 1]
    shared = np.ones((len(boxes), len(anchors)))
    for axis in (0, 1):
        own, other = boxes[:, axis, None], anchors[:, axis]
        part = np.minimum(np.minimum(own, other), (own + other) / 2 - anchors[:, 2] / 4)
        shared *= part.clip(min=0)
    areas = boxes.prod(axis=1)[:, None] + anchors[:, :2].prod(axis=1)
    return (shared / (areas - shared)).max(axis=1)
