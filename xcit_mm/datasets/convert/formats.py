"""Defines what all formats share: a folder of annotated images, and the objects in them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xcit_mm_runtime import rle

from ..folders import split_randomly
from ..problems import Problem


class Object(NamedTuple):
    """An object in an image.

    Args:
        name (str): Its class.
        box (tuple[float]): Left, top, right and bottom in pixels.
        where (str): The place in its file, for messages.
        polygon (tuple[float]): x and y of each corner in pixels. Defaults to (), a box alone.
        ignored (bool): Whether it counts neither for nor against a detector. Defaults to False.
        mask (str): The counts of its mask in COCO's compressed run-length encoding. Defaults to '',
            none.
        area (int): The number of pixels of the mask. Defaults to 0.
    """

    name: str
    box: tuple[float, float, float, float]
    where: str
    polygon: tuple[float, ...] = ()
    ignored: bool = False
    mask: str = ''
    area: int = 0

    @classmethod
    def of_mask(cls, name: str, mask: np.ndarray, where: str) -> 'Object':
        """Return the object of a mask, bool (H, W), which has at least one pixel."""
        rows, columns = (np.flatnonzero(mask.any(axis=axis)).tolist() for axis in (1, 0))
        box = float(columns[0]), float(rows[0]), columns[-1] + 1.0, rows[-1] + 1.0
        return cls(name, box, where, mask=rle.encode(mask)['counts'], area=int(mask.sum()))

    @classmethod
    def of_polygon(cls, name: str, corners: Sequence[float], where: str) -> 'Object':
        """Return the object of a polygon, x and y of each corner in turn."""
        xs, ys = corners[::2], corners[1::2]
        return cls(name, (min(xs), min(ys), max(xs), max(ys)), where, tuple(corners))


@dataclass(eq=False)
class AnnotatedImage:
    """An image and its objects.

    Args:
        path (Path): The image.
        labels (Path): The file that describes it, which may be missing.
        size (tuple[int, int]): Its width and height; (0, 0) until it was decoded.
        objects (list[Object]): Its objects; none until they were read.
    """

    path: Path
    labels: Path
    size: tuple[int, int] = (0, 0)
    objects: list[Object] = field(default_factory=list)


class AnnotatedFolder:
    """A folder in some format. Each format is a subclass, named in ``to_coco.FORMATS``.

    Args:
        folder (Path): The folder.
        classes (list[str], optional): The classes in order, for folders that do not name them.

    Attributes:
        splits (dict[str, list[AnnotatedImage]]): The images of each split; '' has those of a folder
            without splits.
        classes (list[str], optional): The classes in order; None for those that occur.
        problems (list[Problem]): What was left out so far.
        title (str): The name of the format, for people.

    Raises:
        UserError: If it cannot be used.
        UnicodeDecodeError: If a list of images or classes is not text.
    """

    title = ''

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        self.folder = folder
        self.classes = classes
        self.splits: dict[str, list[AnnotatedImage]] = {}
        self.problems: list[Problem] = []

    @staticmethod
    def score(folder: Path) -> int:
        """Return how much a folder looks like this format: 0 is not at all, the highest wins."""
        raise NotImplementedError

    @classmethod
    def is_possible(cls, folder: Path) -> bool:
        """Return whether a folder can be read in this format, if asked for."""
        return cls.score(folder) > 0

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the objects of an image of a width and height, and what is wrong with its file.

        Raises:
            ValueError: If the file is not of this format.
        """
        raise NotImplementedError

    def leave_out(self, kind: str, file: Path | str, detail: str) -> None:
        """Note something that is not converted."""
        self.problems.append(Problem(f'left out: {kind}', str(file), detail))

    def leave_out_ambiguous(self, images: list[Path]) -> None:
        """Note images that share their name, and so their labels, once."""
        names = ', '.join(image.name for image in images)
        problem = Problem('left out: several images', str(images[0].parent), names)
        if problem not in self.problems:
            self.problems.append(problem)

    def split_randomly(self, fraction: float, seed: int) -> None:
        """Split the images of a folder without splits; see :func:`..folders.split_randomly`."""
        images = self.splits.pop('', [])
        # Relative to what they share, so that the split does not depend on where the folder is.
        root = os.path.commonpath([image.path.parent for image in images]) if images else ''
        named = {Path(os.path.relpath(image.path, root)).as_posix(): image for image in images}
        for split, names in split_randomly(named, fraction, seed).items():
            self.splits[split] = [named[name] for name in names]
