"""What the readers of all formats share: images, their objects, and splits."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ..check import Problem

# name of a file or folder -> split
SPLIT_NAMES = {
    'train': 'train',
    'training': 'train',
    'val': 'val',
    'valid': 'val',
    'validation': 'val',
    'test': 'test',
    'testing': 'test',
    'trainval': 'trainval',
}


class Object(NamedTuple):
    """An object in an image.

    Args:
        name (str): Its class.
        box (tuple[float]): Left, top, right and bottom in pixels.
        where (str): The place in its file, for messages.
        polygon (tuple[float]): x and y of each corner in pixels. Defaults to (), a box alone.
        ignored (bool): Whether it counts neither for nor against a detector. Defaults to False.
    """

    name: str
    box: tuple[float, float, float, float]
    where: str
    polygon: tuple[float, ...] = ()
    ignored: bool = False


class Item(NamedTuple):
    """An image, and the file that describes it, which may be missing."""

    image: Path
    labels: Path


# Reads the file of an item, for an image of a width and height.
Reader = Callable[[Path, tuple[int, int]], tuple[list[Object], list[Problem]]]


@dataclass
class Source:
    """A folder in some format.

    Args:
        read (Reader): Reads the objects of one image.
        splits (dict[str, list[Item]]): The images of each split. One named '' has yet to be split.
        classes (list[str], optional): The classes, in order. Defaults to None, those that occur.
        problems (list[Problem]): What was found so far.
    """

    read: Reader
    splits: dict[str, list[Item]]
    classes: list[str] | None = None
    problems: list[Problem] = field(default_factory=list)


def images_by_stem(folder: Path) -> dict[str, list[Path]]:
    """The images directly in a folder; two with one stem would share their labels."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix.lower() in IMAGE_SUFFIXES:
            found.setdefault(path.stem, []).append(path)
    return found


def several_images(images: Sequence[Path]) -> Problem:
    names = ', '.join(image.name for image in images)
    return Problem('left out: several images', str(images[0].parent), names)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: If it is not UTF-8.
    """
    # Some Windows programs write a byte-order mark.
    return path.read_text(encoding='utf-8-sig')


def split_randomly(names: Iterable[str], fraction: float, seed: int) -> tuple[list[str], list[str]]:
    """Split names into two lists, the second with a fraction of them, but not all or none.

    A hash decides, not a random generator: a new image hardly changes where the others go.

    Args:
        names (Iterable[str]): The names; their order does not matter.
        fraction (float): The part of the second list.
        seed (int): Another seed gives another split.
    """
    ranked = sorted(names, key=lambda name: hashlib.sha256(f'{seed} {name}'.encode()).digest())
    count = min(max(round(fraction * len(ranked)), 1), len(ranked) - 1) if fraction else 0
    return sorted(ranked[max(count, 0) :]), sorted(ranked[: max(count, 0)])


def split_items(items: list[Item], fraction: float, seed: int) -> dict[str, list[Item]]:
    """Split images into train and val; see :func:`split_randomly`."""
    # Relative to what they share, so that the split does not depend on where the folder is.
    root = os.path.commonpath([item.image.parent for item in items]) if items else ''
    named = {Path(os.path.relpath(item.image, root)).as_posix(): item for item in items}
    parts = split_randomly(named, fraction, seed)
    found = dict(zip(('train', 'val'), parts, strict=True))
    return {split: [named[name] for name in names] for split, names in found.items() if names}
