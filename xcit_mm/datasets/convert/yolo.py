"""Reads folders in the format of YOLO: one text file per image, one line per object."""

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from xcit_mm_runtime.inputs import IMAGE_SUFFIXES

from ...errors import UserError
from ..check import Problem
from .source import (
    SPLIT_NAMES,
    Item,
    Object,
    Source,
    images_by_stem,
    read_text,
    several_images,
)

NAME_FILES = ('classes.txt', 'obj.names', 'classes.names', 'labels/classes.txt')
# Text files of a folder that are not labels.
OTHER_TEXT = ('classes', 'readme', 'license', 'train', 'val', 'valid', 'test')


def find_description(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The YAML file that describes a folder, as Ultralytics' programs read it, and its content."""
    found = []
    for path in sorted([*folder.glob('*.yaml'), *folder.glob('*.yml')]):
        try:
            content = yaml.safe_load(read_text(path))
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            if path.stem in ('data', 'dataset'):
                text = ' '.join(str(error).split())
                raise UserError(f'{path} is not valid YAML: {text}') from None
            continue
        if isinstance(content, dict) and 'names' in content:
            found.append((path, content))
    usual = [one for one in found if one[0].stem in ('data', 'dataset')]
    return next(iter(usual or found), None)


def find(folder: Path, classes: list[str] | None = None) -> Source:
    """Find the images, labels, classes and splits of a folder.

    Args:
        folder (Path): The folder.
        classes (list[str], optional): The classes by number, for a folder that does not name them.

    Raises:
        UserError: If nothing names the classes.
    """
    described = find_description(folder)
    names = _names(folder, described) or dict(enumerate(classes or ()))
    if not names:
        raise UserError(
            f'{folder} has YOLO labels, but nothing names their classes: neither a YAML file with '
            f'names, nor {", ".join(NAME_FILES)}. Give the names in order: --classes A B C.'
        )
    problems: list[Problem] = []
    splits: dict[str, list[Item]] = {}
    for split, images in _splits(folder, described, problems).items():
        splits[split] = _pair(images, problems)
    problems += _labels_without_image(folder, [i for items in splits.values() for i in items])
    read_objects = functools.partial(read, names=names)
    ordered = [names[index] for index in sorted(names)]
    return Source(read_objects, splits, list(dict.fromkeys(ordered)), problems)


def _names(folder: Path, described: tuple[Path, dict] | None) -> dict[int, str]:
    if described:
        path, names = described[0], described[1]['names']
        if isinstance(names, list):
            names = dict(enumerate(names))
        if not isinstance(names, dict) or not all(type(key) is int for key in names):
            raise UserError(f'{path}: names must be a list, or map numbers to names, not {names!r}')
        return {key: str(name) for key, name in names.items()}
    for name in NAME_FILES:
        if (folder / name).is_file():
            lines = read_text(folder / name).splitlines()
            return dict(enumerate(line.strip() for line in lines if line.strip()))
    return {}


def _splits(
    folder: Path, described: tuple[Path, dict] | None, problems: list[Problem]
) -> dict[str, list[Path]]:
    """The images of each split: as described, or in folders or lists named after one, or all."""
    places: dict[str, list[Path]] = {}
    if described:
        path, content = described
        for name in ('train', 'val', 'valid', 'test'):
            for value in _texts(content.get(name)):
                place = _resolve(value, folder, content.get('path'))
                if place is None:
                    missing = Problem('left out: split missing', str(path), f'{name}: {value}')
                    problems.append(missing)
                else:
                    places.setdefault(SPLIT_NAMES[name], []).append(place)
    if not places:
        for name, split in SPLIT_NAMES.items():
            choices = ('images/' + name, f'{name}/images', f'{name}.txt', name)
            there = [folder / c for c in choices if (folder / c).exists()]
            places.setdefault(split, []).extend(there[:1])
    splits = {split: _images(found, problems) for split, found in places.items() if found}
    if not splits:
        inner = folder / 'images'
        splits = {'': _images([inner if inner.is_dir() else folder], problems)}
    return splits


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text]


def _resolve(value: str, folder: Path, base: Any) -> Path | None:
    """Where a split is: exporters write paths for the folder that training starts from."""
    bases = [folder / str(base), folder] if base else [folder]
    # Roboflow writes ../train/images for train/images.
    inside = value.replace('\\', '/')
    while inside.startswith('../'):
        inside = inside[3:]
    places = [one / name for name in (value, inside) for one in bases]
    return next((place for place in places if place.exists()), None)


def _images(places: Iterable[Path], problems: list[Problem]) -> list[Path]:
    """The images in folders and lists."""
    found: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            paths = [p for p in sorted(place.rglob('*')) if p.suffix.lower() in IMAGE_SUFFIXES]
            found.update(dict.fromkeys(paths))
            continue
        for number, line in enumerate(read_text(place).splitlines(), 1):
            where, name = f'{place}, line {number}', line.strip()
            path = _resolve(name, place.parent, None) if name else None
            if path is not None and path in found:
                problems.append(Problem('left out: duplicate', where, f'{name} is listed twice'))
            elif path is not None:
                found[path] = None
            elif name:
                problems.append(Problem('left out: image missing', where, name))
    return list(found)


def _pair(images: list[Path], problems: list[Problem]) -> list[Item]:
    by_stem = functools.cache(images_by_stem)
    items, reported = [], set()
    for image in images:
        same = by_stem(image.parent).get(image.stem, [image])
        if len(same) == 1:
            items.append(Item(image, _labels_of(image)))
        elif same[0] not in reported:
            reported.add(same[0])
            problems.append(several_images(same))
    return items


def _labels_of(image: Path) -> Path:
    """The labels of an image: in ``labels/`` for ``images/``, or else beside it."""
    beside = image.with_suffix('.txt')
    parts = list(image.parts)
    if 'images' not in parts[:-1] or beside.is_file():
        return beside
    last = len(parts) - 1 - parts[::-1].index('images')
    return Path(*parts[:last], 'labels', *parts[last + 1 :]).with_suffix('.txt')


def _labels_without_image(folder: Path, items: list[Item]) -> list[Problem]:
    used = {item.labels for item in items}
    places = {item.labels.parent for item in items}
    there = [path for place in sorted(places) for path in sorted(place.glob('*.txt'))]
    return [
        Problem('left out: image missing', str(path), 'it has no image')
        for path in there
        if path not in used
        and not (path.stem.lower() in OTHER_TEXT or images_by_stem(images_of(path)).get(path.stem))
    ]


def images_of(labels: Path) -> Path:
    parts = list(labels.parent.parts)
    if 'labels' not in parts:
        return labels.parent
    last = len(parts) - 1 - parts[::-1].index('labels')
    return Path(*parts[:last], 'images', *parts[last + 1 :])


def read(
    path: Path, size: tuple[int, int], names: dict[int, str]
) -> tuple[list[Object], list[Problem]]:
    """Read the objects of an image; see :data:`.source.Reader`.

    Args:
        path (Path): Its text file. If there is none, the image has no objects.
        size (tuple[int, int]): Width and height of the image.
        names (dict[int, str]): The classes by number.

    Raises:
        ValueError: If it is not text.
    """
    if not path.is_file():
        return [], [Problem('changed: no labels', str(path))]
    objects, problems = [], []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        where = f'line {number}'
        if not line.strip():
            continue
        try:
            label, *values = (float(word) for word in line.split())
        except ValueError:
            label, values = math.nan, []
        is_polygon = len(values) >= 6 and len(values) % 2 == 0
        if not label.is_integer() or not (is_polygon or len(values) == 4):
            detail = f'{where}: {line.strip()[:80]!r} is neither a class and a box nor a polygon'
            problems.append(Problem('left out: line unreadable', str(path), detail))
        elif int(label) not in names:
            detail = f'{where}: class {int(label)}; the classes are {min(names)} to {max(names)}'
            problems.append(Problem('left out: unknown class', str(path), detail))
        else:
            objects.append(_object(names[int(label)], values, size, where))
    return objects, problems


def _object(name: str, values: list[float], size: tuple[int, int], where: str) -> Object:
    width, height = size
    if len(values) == 4:
        x, y, w, h = values
        box = (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height
        return Object(name, box, where)
    xs, ys = [x * width for x in values[::2]], [y * height for y in values[1::2]]
    polygon = tuple(number for point in zip(xs, ys, strict=True) for number in point)
    if not all(map(math.isfinite, values)):  # min and max may miss a NaN
        return Object(name, (math.nan,) * 4, where)
    return Object(name, (min(xs), min(ys), max(xs), max(ys)), where, polygon)
