"""Reads folders of masks: a file for each object, or label images that number objects."""

import csv
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ...errors import UserError
from ..find.labels import (
    IMAGE_FOLDERS,
    LABEL_MODES,
    count_regions,
    find_label_folders,
    find_label_suffix,
    looks_like_instances,
)
from ..folders import SPLIT_NAMES, folders_named, images_by_stem, split_of
from ..problems import Problem
from .formats import AnnotatedFolder, AnnotatedImage, Object

MASK_FOLDERS = ('masks', 'mask', 'instances', 'objects')
# What follows the name of an image in those of its masks, if all are in one folder: _0, -cell_12.
NUMBER = re.compile(r'[_-](?:\w*[_-])?\d+')
# The name of the class, if nothing else names it.
DEFAULT_CLASS = 'object'
# Masks may share this part of their pixels with others: borders are drawn twice.
OVERLAP = 0.1
# Label images that are looked at to tell objects from classes.
LOOKED_AT = 20
# Names of columns of tables, in lower case.
ID_COLUMNS = ('id', 'label', 'value', 'object', 'object_id', 'instance', 'instance_id', 'label_id')
CLASS_COLUMNS = ('class', 'class_name', 'category', 'name', 'type', 'cell_type')
SEPARATORS = (',', ';', '\t')
JPEG = ('.jpg', '.jpeg')
IMAGE_COLUMNS = ('image', 'image_id', 'image_name', 'file', 'file_name', 'filename')


class MaskFolder(AnnotatedFolder):
    """One file for each object: ``NAME/images/NAME.png`` and ``NAME/masks/*.png``.

    The image may also be in ``NAME/`` itself, and masks in ``masks/NAME/``, or as
    ``masks/NAME_0.png``, for the images in ``images/``. All objects are of one class.
    """

    title = 'one mask file per object'

    @staticmethod
    def score(folder: Path) -> int:
        # A split with a single image and its label image looks like an image with one object.
        found = sum(len(masks) for _, _, masks in _find_masks(folder))
        pairs = sum(labels.is_file() for _, _, labels in _label_pairs(folder))
        return 4 if found > pairs else 0

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        super().__init__(folder, [_only_class(classes)])
        self.masks: dict[Path, list[Path]] = {}
        for image, place, masks in _find_masks(folder):
            if not masks:
                self.leave_out('no annotations', image, f'there are no masks in {place}')
                continue
            self.masks[place] = masks
            # The folder of a single image may have any name.
            own = {image.stem, place.parent.name} - SPLIT_NAMES.keys()
            split = split_of(part for part in place.relative_to(folder).parts if part not in own)
            self.splits.setdefault(split, []).append(AnnotatedImage(image, place))

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the masks of an image; what is not black belongs to the object."""
        (name,) = self.classes or [DEFAULT_CLASS]
        objects, problems = [], []
        covered = np.zeros(size[::-1], np.uint16)
        masks = {}
        for path in self.masks[labels]:
            try:
                # JPEG blurs edges.
                mask = read_numbers(path) > (127 if path.suffix.lower() in JPEG else 0)
            except ValueError as error:
                problems.append(Problem('left out: mask unreadable', str(path), str(error)))
                continue
            if mask.shape != covered.shape:
                detail = f'{mask.shape[1]} x {mask.shape[0]}; the image has {size[0]} x {size[1]}'
                problems.append(Problem('left out: mask of another size', str(path), detail))
            elif not mask.any():
                problems.append(Problem('left out: empty mask', str(path)))
            else:
                masks[path] = mask
                covered += mask
        for path, mask in masks.items():
            objects.append(Object.of_mask(name, mask, path.name))
            shared = float((covered[mask] > 1).mean())
            if shared > OVERLAP:
                detail = f'{shared:.0%} of its pixels belong to other masks, too'
                problems.append(Problem('changed: masks overlap', str(path), detail))
        return objects, problems


class NumberedFolder(AnnotatedFolder):
    """Images in ``images/`` and label images that number objects in ``masks/`` or ``labels/``.

    Numbers have 8, 16 or, as red + 256 green + 65536 blue, 24 bits; 0 is background. A CSV file in
    the folder may name the class of each number, with columns such as ``image``, ``id`` and
    ``class``; without one, all objects are of one class.
    """

    title = 'label images that number objects'

    @staticmethod
    def score(folder: Path) -> int:
        pairs = [pair for pair in _label_pairs(folder) if pair[2].is_file()]
        sample = pairs[:: max(1, len(pairs) // LOOKED_AT)]
        try:
            counts = [count_regions(read_numbers(label)) for _, _, label in sample]
        except ValueError:
            return 0
        files = [regions for regions in counts if regions]
        return 4 if files and (_find_table(folder) or looks_like_instances(files)) else 0

    @classmethod
    def is_possible(cls, folder: Path) -> bool:
        return next(_label_pairs(folder), None) is not None

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        self.table = _find_table(folder)
        super().__init__(folder, None if self.table else [_only_class(classes)])
        self.stems: dict[Path, str] = {}
        for split, image, labels in _label_pairs(folder):
            if not labels.is_file():
                self.leave_out('no annotations', image, f'there is no {labels}')
                continue
            self.stems[labels] = image.stem
            self.splits.setdefault(split, []).append(AnnotatedImage(image, labels))

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the objects of a label image."""
        numbers = read_numbers(labels)
        if numbers.shape != size[::-1]:
            stated = f'{numbers.shape[1]} x {numbers.shape[0]}'
            raise ValueError(f'it has {stated} pixels; the image has {size[0]} x {size[1]}')
        objects, problems = [], []
        for number in np.unique(numbers[numbers > 0]).tolist():
            where, name = f'number {number}', self._class_of(labels, number)
            if name is None:
                detail = f'{where} is not in the table of classes'
                problems.append(Problem('left out: unknown class', str(labels), detail))
            else:
                objects.append(Object.of_mask(name, numbers == number, where))
        return objects, problems

    def _class_of(self, labels: Path, number: int) -> str | None:
        if not self.table:
            return (self.classes or [DEFAULT_CLASS])[0]
        return self.table.get((self.stems[labels], number)) or self.table.get(('', number))


def read_numbers(path: Path) -> np.ndarray:
    """Read a label image: the number of each pixel, (H, W).

    Raises:
        ValueError: If it cannot be read, or is neither gray nor RGB.
    """
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f'it cannot be read: {error}') from None
    if mode in ('RGB', 'RGBA', 'LA'):  # the last channel of the latter two is opacity
        colors = pixels[..., : 1 if mode == 'LA' else 3].astype(np.int64)
        return colors @ [1, 256, 65536][: colors.shape[-1]]
    if mode not in LABEL_MODES:
        raise ValueError(f'it has the mode {mode}, neither one number per pixel nor RGB')
    return pixels.astype(np.int64)


def _only_class(classes: list[str] | None) -> str:
    if classes and len(classes) > 1:
        raise UserError(
            f'The masks do not say which object is of which class, so --classes takes one name, '
            f'not {", ".join(classes)}.'
        )
    return classes[0] if classes else DEFAULT_CLASS


def _images(folder: Path) -> list[Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return [path for path in found if not path.name.startswith('.')]


def _find_masks(folder: Path) -> Iterator[tuple[Path, Path, list[Path]]]:
    """Yield each image that has masks of its own, their place, and the masks, which may be none.

    The place is their folder, or if they share it with others, the start of their names.
    """
    by_stem = functools.cache(images_by_stem)
    folders = (path for path in folder.rglob('*') if path.is_dir())
    for masks in sorted(path for path in folders if path.name.lower() in MASK_FOLDERS):
        home = masks.parent
        if any(part.startswith(('.', '__')) for part in masks.relative_to(folder).parts):
            continue
        places = [home, *folders_named(home, IMAGE_FOLDERS)]
        files = _images(masks)
        if files or not any(masks.iterdir()):
            images = [image for place in places for image in _images(place)]
            if len(images) == 1:
                yield images[0], masks, files
            else:
                yield from _numbered_masks(images, masks, files)
            continue
        for inner in sorted(path for path in masks.rglob('*') if _images(path)):
            below = inner.relative_to(masks)
            found = (by_stem(place / below.parent).get(below.name) for place in places)
            if image := next(filter(None, found), None):
                yield image[0], inner, _images(inner)


def _numbered_masks(
    images: list[Path], folder: Path, files: list[Path]
) -> Iterator[tuple[Path, Path, list[Path]]]:
    """Yield what :func:`_find_masks` does, for files such as ``NAME_0.png`` and ``NAME_1.png``."""
    by_stem = {image.stem: image for image in images}
    found: dict[str, list[Path]] = {stem: [] for stem in by_stem}
    for path in (path for path in files if path.stem not in by_stem):
        ends = (i for i in range(len(path.stem) - 1, 0, -1) if NUMBER.fullmatch(path.stem, i))
        if stem := next((path.stem[:i] for i in ends if path.stem[:i] in by_stem), None):
            found[stem].append(path)
    if any(len(masks) > 1 for masks in found.values()):  # else they may be label images
        for stem, masks in found.items():
            yield by_stem[stem], folder / stem, masks


def _label_pairs(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield the split, each image, and the path of its label image, which may be missing."""
    for split, (images, labels) in find_label_folders(folder).items():
        try:
            suffix = find_label_suffix(images, labels)
        except UserError:
            continue
        for stem, paths in images_by_stem(images).items():
            if len(paths) == 1:
                yield split, paths[0], labels / f'{stem}{suffix}'


def _find_table(folder: Path) -> dict[tuple[str, int], str]:
    """Return the class of each number from the CSV files of a folder, by image or for all ('')."""
    found = {}
    for path in sorted(folder.glob('*.csv')):
        try:
            with path.open(encoding='utf-8-sig', newline='') as file:
                heading = file.readline()
                separator = max(SEPARATORS, key=heading.count)
                file.seek(0)
                reader = csv.DictReader(file, delimiter=separator)
                rows = [{str(k).strip().lower(): v for k, v in row.items()} for row in reader]
        except (ValueError, csv.Error):
            continue
        columns = [
            next((name for name in names if rows and name in rows[0]), None)
            for names in (IMAGE_COLUMNS, ID_COLUMNS, CLASS_COLUMNS)
        ]
        image, number, name = columns
        if number is None or name is None:
            continue
        for row in rows:
            value = (row[number] or '').strip().removesuffix('.0')
            if value.isdecimal() and (row[name] or '').strip():
                stem = Path(row[image] or '').stem if image else ''
                found[stem, int(value)] = row[name].strip()
    return found
