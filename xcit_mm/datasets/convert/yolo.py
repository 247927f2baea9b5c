"""Reads folders in the format of YOLO: one text file per image, one line per object."""

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ...errors import UserError
from ..folders import SPLIT_NAMES, images_by_stem, read_lines
from ..problems import Problem
from .formats import AnnotatedFolder, AnnotatedImage, Object

NAME_FILES = ('classes.txt', 'obj.names', 'classes.names', 'labels/classes.txt')
# Text files of a folder that are not labels.
OTHER_TEXT = ('classes', 'readme', 'license', 'train', 'val', 'valid', 'test')


class YoloFolder(AnnotatedFolder):
    """Text files in ``labels/`` for the images in ``images/``, or beside the images.

    A YAML file describes the splits and classes, as Ultralytics' programs read it; else folders or
    lists are named after a split, and classes are in one of :data:`NAME_FILES`.
    """

    title = 'YOLO'

    @staticmethod
    def score(folder: Path) -> int:
        if not (folder / 'Annotations').is_dir() and (
            _find_description(folder) or any((folder / name).is_file() for name in NAME_FILES)
        ):
            return 3
        by_stem = functools.cache(images_by_stem)
        return int(
            any(
                path.stem in by_stem(place)
                for path in folder.rglob('*.txt')
                for place in (path.parent, _swap(path, 'labels', 'images').parent)
            )
        )

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        super().__init__(folder)
        self.by_stem = functools.cache(images_by_stem)
        self.description_file, self.description = _find_description(folder) or (folder, {})
        self.names = self._find_names() or dict(enumerate(classes or ()))
        if not self.names:
            raise UserError(
                f'{folder} has YOLO labels, but nothing names their classes: neither a YAML file '
                f'with names, nor {", ".join(NAME_FILES)}. Name them in order: --classes A B C.'
            )
        self.classes = list(dict.fromkeys(self.names[index] for index in sorted(self.names)))
        pair = functools.cache(self._pair)
        for split, places in (self._described_splits() or self._named_splits()).items():
            self.splits[split] = list(filter(None, map(pair, self._find_images(places))))
        self._find_labels_without_image()

    def _find_names(self) -> dict[int, str]:
        """Return the classes by number; none if nothing names them."""
        if 'names' in self.description:
            names = self.description['names']
            if isinstance(names, list):
                names = dict(enumerate(names))
            if not isinstance(names, dict) or not all(type(key) is int for key in names):
                raise UserError(
                    f'{self.description_file}: names must be a list, or map numbers to names, not '
                    f'{names!r}'
                )
            return {key: str(name) for key, name in names.items()}
        for name in NAME_FILES:
            if (self.folder / name).is_file():
                return dict(enumerate(read_lines(self.folder / name).values()))
        return {}

    def _described_splits(self) -> dict[str, list[Path]]:
        """Return the folders and lists of images that the YAML file names."""
        places: dict[str, list[Path]] = {}
        for name in ('train', 'val', 'valid', 'test'):
            values = self.description.get(name)
            for value in values if isinstance(values, list) else [values]:
                if not value or not isinstance(value, str):
                    continue
                place = _resolve(value, self.folder, self.description.get('path'))
                if place is None:
                    self.leave_out('split missing', self.description_file, f'{name}: {value}')
                else:
                    places.setdefault(SPLIT_NAMES[name], []).append(place)
        return places

    def _named_splits(self) -> dict[str, list[Path]]:
        """Return the folders and lists that are named after a split, or else all images."""
        places: dict[str, list[Path]] = {}
        for name, split in SPLIT_NAMES.items():
            choices = (f'images/{name}', f'{name}/images', f'{name}.txt', name)
            there = [self.folder / choice for choice in choices if (self.folder / choice).exists()]
            if there:
                places.setdefault(split, []).append(there[0])
        inner = self.folder / 'images'
        return places or {'': [inner if inner.is_dir() else self.folder]}

    def _find_images(self, places: Iterable[Path]) -> list[Path]:
        """Return the images in folders and lists."""
        found: dict[Path, None] = {}
        for place in places:
            if place.is_dir():
                paths = [p for p in sorted(place.rglob('*')) if p.suffix.lower() in IMAGE_SUFFIXES]
                found.update(dict.fromkeys(paths))
                continue
            for number, name in read_lines(place).items():
                where, path = f'{place}, line {number}', _resolve(name, place.parent)
                if path is None:
                    self.leave_out('image missing', where, name)
                elif path in found:
                    self.leave_out('duplicate', where, f'{name} is listed twice')
                else:
                    found[path] = None
        return list(found)

    def _pair(self, image: Path) -> AnnotatedImage | None:
        """Return an image with its labels: in ``labels/`` for ``images/``, or else beside it."""
        same = self.by_stem(image.parent).get(image.stem, [image])
        if len(same) > 1:
            self.leave_out_ambiguous(same)
            return None
        beside = image.with_suffix('.txt')
        labels = beside if beside.is_file() else _swap(beside, 'images', 'labels')
        return AnnotatedImage(image, labels)

    def _find_labels_without_image(self) -> None:
        used = {image.labels for images in self.splits.values() for image in images}
        for folder in sorted({path.parent for path in used}):
            images = images_by_stem(_swap(folder / 'any.txt', 'labels', 'images').parent)
            for path in sorted(folder.glob('*.txt')):
                is_other = path.stem.lower() in OTHER_TEXT or path.stem in images
                if path not in used and not is_other:
                    self.leave_out('image missing', path, 'it has no image')

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the objects of an image; without a file, it has none."""
        if not labels.is_file():
            return [], [Problem('changed: no labels', str(labels))]
        objects, problems = [], []
        for number, line in read_lines(labels).items():
            where = f'line {number}'
            try:
                label, *values = (float(word) for word in line.split())
            except ValueError:
                label, values = math.nan, []
            is_polygon = len(values) >= 6 and len(values) % 2 == 0
            if not label.is_integer() or not (is_polygon or len(values) == 4):
                detail = f'{where}: {line[:80]!r} is neither a class and a box nor a polygon'
                problems.append(Problem('left out: line unreadable', str(labels), detail))
            elif int(label) not in self.names:
                known = f'the classes are {min(self.names)} to {max(self.names)}'
                detail = f'{where}: class {int(label)}; {known}'
                problems.append(Problem('left out: unknown class', str(labels), detail))
            else:
                objects.append(_object(self.names[int(label)], values, size, where))
        return objects, problems


def _find_description(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the YAML file that describes a folder, and its content."""
    found = []
    for path in sorted([*folder.glob('*.yaml'), *folder.glob('*.yml')]):
        try:
            content = yaml.safe_load(path.read_text(encoding='utf-8-sig'))
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            if path.stem in ('data', 'dataset'):
                text = ' '.join(str(error).split())
                raise UserError(f'{path} is not valid YAML: {text}') from None
            continue
        if isinstance(content, dict) and 'names' in content:
            found.append((path, content))
    usual = [one for one in found if one[0].stem in ('data', 'dataset')]
    return next(iter(usual or found), None)


def _resolve(name: str, folder: Path, base: Any = None) -> Path | None:
    """Find a file or folder: exporters write paths for the folder that training starts from."""
    bases = [folder / str(base), folder] if base else [folder]
    # Roboflow writes ../train/images for train/images.
    inside = name.replace('\\', '/')
    while inside.startswith('../'):
        inside = inside[3:]
    places = [one / path for path in (name, inside) for one in bases]
    return next((place for place in places if place.exists()), None)


def _swap(path: Path, old: str, new: str) -> Path:
    """Return a path whose last folder of a name has another; unchanged without such a folder."""
    *folders, name = path.parts
    if old in folders:
        folders[len(folders) - 1 - folders[::-1].index(old)] = new
    return Path(*folders, name)


def _object(name: str, values: list[float], size: tuple[int, int], where: str) -> Object:
    width, height = size
    if len(values) == 4:
        x, y, w, h = values
        box = (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height
        return Object(name, box, where)
    if not all(map(math.isfinite, values)):  # min and max may miss a NaN
        return Object(name, (math.nan,) * 4, where)
    xs, ys = [x * width for x in values[::2]], [y * height for y in values[1::2]]
    corners = [number for point in zip(xs, ys, strict=True) for number in point]
    return Object.of_polygon(name, corners, where)
