"""Describes a dataset that was found."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from PIL import Image

from ...errors import UserError
from ..folders import count_file_types
from ..images import find_bit_depth
from ..objects import Objects

# Images that are looked at for what most have in common.
SAMPLE = 200
# A class with a smaller part of the labeled pixels is rare.
RARE = 0.02
# task -> what is looked for
LOOKED_FOR = {
    'detection': 'annotations in the formats of COCO and labelme (JSON), Pascal VOC (XML) and YOLO '
    '(text), for masks/ with a file for each object beside a single image or in a folder with its '
    'name, and for images/ with masks/ or labels/ that number objects',
    'segmentation': 'images in images/ or images/train/, with labels as PNG files of the same '
    'names in labels/, annotations/ or masks/',
}


class Split(NamedTuple):
    """The paths of one split of a dataset, relative to its root, or absolute.

    Args:
        ann_file (str): Its annotation file or list of images; '' if it has none.
        images (str): The folder of its images.
        labels (str): The folder of its labels, for segmentation.
        total (int): The number of its images.
    """

    ann_file: str
    images: str
    labels: str
    total: int


@dataclass
class FoundData:
    """A dataset.

    Args:
        root (Path): Its folder.
        splits (dict[str, Split]): Some of ``train``, ``val`` and ``test``; the first two always.
        classes (list[str]): The names of the classes.
        size (tuple[int, int]): Median width and height of the images.
        example (Path): An image of the validation split.
        bit_depth (int, optional): How many bits the values of 16-bit images have, if there are any.
        objects (Objects, optional): The objects, for detection.
        masks (bool): Whether every object has a mask, for detection.
        maskless (int): How many objects have none, if others have one, for detection.
        unused (list[str]): Classes that are left out since they have no objects, for detection.
        suffix (str): What follows the name of an image in that of its labels, for segmentation.
        void (list[int]): The labels that are ignored, for segmentation.
        first (int): The label of the first class, for segmentation.
        values (list[int]): The label of each class if it is not its number, for segmentation.
        named (bool): Whether the names of the classes are known.
        assumed (dict[str, str]): What the labels do not say, by the option that says it.
        shares (list[float]): The part of the labeled pixels that each class has, for segmentation.
    """

    root: Path
    splits: dict[str, Split]
    classes: list[str]
    size: tuple[int, int]
    example: Path
    bit_depth: int | None
    objects: Objects | None = None
    masks: bool = False
    maskless: int = 0
    unused: list[str] = field(default_factory=list)
    suffix: str = ''
    void: list[int] = field(default_factory=list)
    first: int = 0
    values: list[int] = field(default_factory=list)
    named: bool = True
    assumed: dict[str, str] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)

    @property
    def rare_classes(self) -> list[str]:
        """The classes with few of the pixels, but some."""
        named = zip(self.classes, self.shares, strict=False)
        return [name for name, share in named if 0 < share < RARE]

    @classmethod
    def describe(
        cls,
        root: Path,
        splits: dict[str, Split],
        images: dict[str, list[Path]],
        classes: list[str],
        **others: Any,
    ) -> 'FoundData':
        """Look at the images of the splits; without a split for validation, use another.

        Raises:
            UserError: If no image can be read.
        """
        held_out = next(split for split in ('val', 'test', 'train') if split in splits)
        splits = {**splits, 'val': splits[held_out]}
        bit_depth = find_bit_depth([path for paths in images.values() for path in paths])
        size, example = _median_size(images['train']), images[held_out][0]
        return cls(root, splits, classes, size, example, bit_depth, **others)


def _median_size(paths: list[Path]) -> tuple[int, int]:
    sizes = []
    for path in paths[:: max(1, len(paths) // SAMPLE)]:
        try:
            with Image.open(path) as image:
                sizes.append(image.size)
        except Exception:  # a damaged file can raise anything; the check reports it
            continue
    if not sizes:
        raise UserError(f'None of the images in {paths[0].parent} can be read.')
    return int(median(size[0] for size in sizes)), int(median(size[1] for size in sizes))


def explain_nothing_found(folder: Path, task: str) -> str:
    """Describe what was looked for in a folder without usable data, and what is there."""
    return (
        f'{folder} has nothing to train on. Looked for {LOOKED_FOR[task]}. '
        f'Found {count_file_types(folder)}.'
    )
