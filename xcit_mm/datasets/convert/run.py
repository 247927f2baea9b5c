"""Converts a folder to COCO's format: reads every image and object, and says what is left out."""

import functools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from xcit_mm_runtime.files import check_writable, write_atomically

from ...errors import UserError
from ..check import Problem, Report
from ..check.images import check_image, large_images
from ..check.run import in_threads
from ..folders import contents_of
from . import voc, yolo
from .source import Item, Object, Source, images_by_stem, split_items

# Less is the rounding of a program that wrote the box.
BORDER = 0.5


@dataclass
class Converted:
    """What a conversion gave.

    Args:
        classes (list[str]): The classes, in the order of their ids.
        files (dict[str, Path]): The annotation file of each split.
        images (dict[str, int]): The number of images of each split.
        objects (dict[str, Counter]): The number of objects of each class, by split.
        report (Report): What was left out or changed.
    """

    classes: list[str]
    files: dict[str, Path] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    objects: dict[str, Counter] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of a table: the images, and the objects of each class, by split."""
        objects = [
            {'': name, **{split: self.objects[split][name] for split in self.files}}
            for name in self.classes
        ]
        return [{'': 'images', **self.images}, *objects]


def find_format(folder: Path) -> str | None:
    """The format of a folder: ``voc``, ``yolo``, or None if it has neither's files."""
    named = any((folder / name).is_file() for name in yolo.NAME_FILES)
    if (named or yolo.find_description(folder)) and not (folder / 'Annotations').is_dir():
        return 'yolo'
    if voc.find_files(folder):
        return 'voc'
    by_stem = functools.cache(images_by_stem)
    for path in sorted(folder.rglob('*.txt')):
        if any(path.stem in by_stem(place) for place in (path.parent, yolo.images_of(path))):
            return 'yolo'
    return None


def convert_folder(
    folder: Path,
    out: Path,
    kind: str | None = None,
    classes: list[str] | None = None,
    splits: list[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    overwrite: bool = False,
    workers: int = 1,
) -> Converted:
    """Convert a folder, and write one file per split.

    Args:
        folder (Path): The folder; its files are not changed.
        out (Path): Where the files go: ``train.json`` and so on.
        kind (str, optional): ``voc`` or ``yolo``. Defaults to None, what the folder looks like.
        classes (list[str], optional): The classes, in order; objects of others are left out.
            Defaults to None: all, for VOC in alphabetical order.
        splits (list[str], optional): The splits to convert. Defaults to None, all.
        val_fraction (float): The part for validation, if the folder has no splits.
        seed (int): The seed of that choice.
        overwrite (bool): Whether files are replaced.
        workers (int): Threads that decode images.

    Raises:
        UserError: If nothing can be converted, or a file exists.
    """
    source = _find(folder, kind, classes)
    if '' in source.splits:
        source.splits |= split_items(source.splits.pop(''), val_fraction, seed)
    found = [split for split, items in source.splits.items() if items]
    wanted = found if splits is None else splits
    if missing := [split for split in wanted if split not in found]:
        raise UserError(
            f'{folder} has no images for {", ".join(missing)}; it has {", ".join(found) or "none"}.'
        )
    files = {split: out / f'{split}.json' for split in wanted}
    if not overwrite and (there := [path for path in files.values() if path.exists()]):
        raise UserError(f'{there[0]} already exists; --force overwrites it.')
    check_writable(next(iter(files.values())))
    report = Report(splits=wanted, problems=[*source.problems, *_shared(source.splits)])
    chosen = dict.fromkeys(item for split in wanted for item in source.splits[split])
    read = _read_all(source, list(chosen), report, workers)
    occurring = {one.name for _, objects in read.values() for one in objects}
    names = classes or source.classes or sorted(occurring)
    converted = Converted(names, files, report=report)
    checked = {item: _usable(item, *found, names, report) for item, found in read.items()}
    contents = {}
    for split in wanted:
        parts = [(item.image, *checked[item]) for item in source.splits[split] if item in checked]
        contents[split] = _coco(parts, folder, names)
        converted.images[split] = len(parts)
        converted.objects[split] = Counter(o.name for *_, objects in parts for o in objects)
    if not any(map(len, (content['annotations'] for content in contents.values()))):
        raise UserError(_nothing(folder, report))
    for split, content in contents.items():
        write_atomically(files[split], json.dumps(content) + '\n')
    return converted


def _find(folder: Path, kind: str | None, classes: list[str] | None) -> Source:
    if not folder.is_dir():
        raise UserError(f'There is no folder {folder.absolute()}.')
    kind = kind or find_format(folder)
    if kind is None:
        raise UserError(
            f'{folder} is in neither format. Looked for XML files (Pascal VOC), and for text files '
            'with the names of images, classes.txt or a YAML file with names (YOLO). '
            f'Found {contents_of(folder)}.'
        )
    if kind == 'voc' and not voc.find_files(folder):
        raise UserError(f'{folder} has no XML files. Found {contents_of(folder)}.')
    try:
        return voc.find(folder) if kind == 'voc' else yolo.find(folder, classes)
    except UnicodeDecodeError as error:
        raise UserError(f'A list of images or classes in {folder} is not UTF-8: {error}.') from None


def _shared(splits: dict[str, list[Item]]) -> list[Problem]:
    """Images in several splits, which make a measurement too good. trainval repeats them anyway."""
    count = Counter(i.image for name, items in splits.items() if name != 'trainval' for i in items)
    shared = [path for path, number in count.items() if number > 1]
    return [Problem('changed: in several splits', str(path)) for path in shared]


def _read_all(
    source: Source, items: list[Item], report: Report, workers: int
) -> dict[Item, tuple[tuple[int, int], list[Object]]]:
    """Decode the images and read their objects; those that cannot be read are left out."""
    found = {}
    jobs = [functools.partial(_read, source, item) for item in items]
    with large_images(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task('reading', total=len(jobs))
        for item, (size, objects, problems) in zip(items, in_threads(jobs, workers), strict=True):
            report.problems += problems
            if size is not None:
                found[item] = size, objects
            progress.advance(task)
    report.images = len(found)
    return found


def _read(source: Source, item: Item) -> tuple[tuple[int, int] | None, list[Object], list[Problem]]:
    image = str(item.image)
    problems, shape = check_image(image)
    if shape is None:
        details = [f'{problem.kind.partition(": ")[2]}. {problem.detail}' for problem in problems]
        return None, [], [Problem('left out: image unreadable', image, d.strip()) for d in details]
    size = shape[1], shape[0]
    try:
        objects, more = source.read(item.labels, size)
    except (ValueError, OSError) as error:
        unreadable = Problem('left out: annotations unreadable', str(item.labels), str(error))
        return None, [], [*problems, unreadable]
    return size, objects, problems + more


def _usable(
    item: Item, size: tuple[int, int], objects: list[Object], names: list[str], report: Report
) -> tuple[tuple[int, int], list[Object]]:
    """The objects of an image that training can use, cut off at its borders."""
    usable: dict[tuple, Object] = {}
    for one in objects:
        kind, detail = _fault(one, size, names)
        clipped = _clip(one, size)
        if not kind and (one.name, one.box, one.polygon) in usable:
            kind, detail = 'left out: duplicate', 'the same class and place as another object'
        if not kind.startswith('left out'):
            usable[one.name, one.box, one.polygon] = clipped
        if kind:
            report.problems.append(Problem(kind, str(item.labels), f'{one.where}: {detail}'))
    return size, list(usable.values())


def _fault(one: Object, size: tuple[int, int], names: list[str]) -> tuple[str, str]:
    """What is wrong with an object, and the details; empty if nothing is."""
    left, top, right, bottom = one.box
    text = f'{one.name} {", ".join(f"{number:g}" for number in one.box)}'
    place = f'{text} in an image of {size[0]} x {size[1]}'
    if one.name not in names:
        return 'left out: unknown class', f'{one.name!r} is not one of {", ".join(names)}'
    if not all(map(math.isfinite, one.box)):
        return 'left out: not a number', text
    if right <= left or bottom <= top:
        return 'left out: empty box', f'{text}: no width or height'
    if left >= size[0] or top >= size[1] or right <= 0 or bottom <= 0:
        return 'left out: box outside', place
    clipped = _clip(one, size)
    width, height = clipped.box[2] - clipped.box[0], clipped.box[3] - clipped.box[1]
    if width < 1 or height < 1 or _round(_area(clipped)) <= 0:
        return 'left out: empty box', f'{place}: below one pixel'
    if max(abs(a - b) for a, b in zip(one.box, clipped.box, strict=True)) > BORDER:
        return 'changed: clipped', place
    return '', ''


def _clip(one: Object, size: tuple[int, int]) -> Object:
    """An object cut off at the borders of its image; a NaN stays."""
    left, top, right, bottom = (_within(n, size[i % 2]) for i, n in enumerate(one.box))
    polygon = tuple(_within(number, size[i % 2]) for i, number in enumerate(one.polygon))
    return one._replace(box=(left, top, right, bottom), polygon=polygon)


def _within(number: float, limit: int) -> float:
    return min(max(number, 0.0), float(limit))


def _area(one: Object) -> float:
    if not one.polygon:
        return (one.box[2] - one.box[0]) * (one.box[3] - one.box[1])
    xs, ys = one.polygon[::2], one.polygon[1::2]
    turned = zip(xs, ys, xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)
    return abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in turned)) / 2


def _coco(
    parts: Iterable[tuple[Path, tuple[int, int], list[Object]]], folder: Path, names: list[str]
) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, (width, height), objects in parts:
        name = Path(os.path.relpath(image, folder)).as_posix()
        number = len(images) + 1
        images.append({'id': number, 'file_name': name, 'width': width, 'height': height})
        for one in objects:
            left, top, right, bottom = one.box
            annotation = {
                'id': len(annotations) + 1,
                'image_id': number,
                'category_id': names.index(one.name) + 1,
                'bbox': [_round(n) for n in (left, top, right - left, bottom - top)],
                'area': _round(_area(one)),
                # A crowd counts neither for nor against a detector, in mmdet's training and in
                # COCO's evaluation. "ignore" does not: mmdet would train on it as background, and
                # the evaluation overwrites it.
                'iscrowd': int(one.ignored),
            }
            if one.polygon:
                annotation['segmentation'] = [[_round(number) for number in one.polygon]]
            annotations.append(annotation)
    categories = [{'id': index + 1, 'name': name} for index, name in enumerate(names)]
    info = {'description': 'converted by xcit_mm'}
    return {'info': info, 'categories': categories, 'images': images, 'annotations': annotations}


def _round(number: float) -> float:
    """A thousandth of a pixel; whole numbers without a decimal point."""
    rounded = round(number, 3)
    return int(rounded) if rounded == int(rounded) else rounded


def _nothing(folder: Path, report: Report) -> str:
    counts = [f'{row["problem"]} ({row["count"]})' for row in report.rows()]
    because = f' {"; ".join(counts)}. The first: {report.problems[0]}.' if counts else ''
    return f'{folder} has no object that can be used, so nothing was written.{because}'
