"""Converts a folder to COCO's format: reads every image and object, and says what is left out."""

import functools
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime import coco
from xcit_mm_runtime.files import check_new, check_writable, write_atomically
from xcit_mm_runtime.progress import track

from ...errors import UserError
from ..check.coco import check_object
from ..find.coco import CONVERTED
from ..folders import count_file_types
from ..images import check_image, map_in_threads
from ..problems import CheckReport, Problem
from .formats import AnnotatedFolder, AnnotatedImage, Object
from .labelme import LabelmeFolder
from .masks import MaskFolder, NumberedFolder
from .voc import VocFolder
from .yolo import YoloFolder

FORMATS: dict[str, type[AnnotatedFolder]] = {
    'voc': VocFolder,
    'yolo': YoloFolder,
    'labelme': LabelmeFolder,
    'masks': MaskFolder,
    'numbers': NumberedFolder,
}


LOOKED_FOR = (
    'XML files (Pascal VOC); text files with the names of images, classes.txt or a YAML file with '
    'names (YOLO); JSON files with shapes (labelme); masks/ with a file for each object beside a '
    'single image, or masks/NAME/ for images/NAME.png; images/ with masks/ or labels/ that number '
    'objects (PNG or TIFF)'
)


@dataclass
class Converted:
    """The result of a conversion.

    Args:
        title (str): The format of the folder.
        classes (list[str]): The classes, in the order of their ids.
        files (dict[str, Path]): The annotation file of each split.
        rows (list[dict]): A table of the images, and of the objects of each class, by split.
        report (CheckReport): What was left out or changed.
    """

    title: str
    classes: list[str]
    files: dict[str, Path]
    rows: list[dict[str, Any]]
    report: CheckReport


def find_format(folder: Path) -> str | None:
    """Return the name of the format that a folder looks like; None if it looks like none."""
    scores = {name: kind.score(folder) for name, kind in FORMATS.items()}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] else None


def convert_folder(
    folder: Path,
    out: Path,
    kind: str | None = None,
    classes: list[str] | None = None,
    splits: list[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    overwrite: bool = False,
) -> Converted:
    """Convert a folder, and write one file per split.

    Args:
        folder (Path): The folder; its files are not changed.
        out (Path): Where the files go: ``train.json`` and so on.
        kind (str, optional): One of :data:`FORMATS`. Defaults to None, what the folder looks like.
        classes (list[str], optional): The classes, in order; objects of others are left out.
            Defaults to None: all, for VOC in alphabetical order.
        splits (list[str], optional): The splits to convert. Defaults to None, all.
        val_fraction (float): The part for validation, if the folder has no splits, or only one for
            training and ``splits`` is None.
        seed (int): The seed of that choice.
        overwrite (bool): Whether files are replaced.

    Raises:
        UserError: If nothing can be converted, or a file exists.
    """
    source = _open(folder, kind, classes)
    if splits is None and source.splits.keys() == {'train'}:
        source.splits[''] = source.splits.pop('train')  # nothing is left for validation
    source.split_randomly(val_fraction, seed)
    found = [split for split, items in source.splits.items() if items]
    wanted = found if splits is None else splits
    if missing := [split for split in wanted if split not in found]:
        raise UserError(
            f'{folder} has no images for {", ".join(missing)}; it has {", ".join(found) or "none"}.'
        )
    files = {split: out / f'{split}.json' for split in wanted}
    for path in files.values():
        check_new(path, overwrite)
        check_writable(path)
    report = CheckReport(wanted, problems=[*source.problems, *_find_leakage(source)])
    images = list(dict.fromkeys(image for split in wanted for image in source.splits[split]))
    results = map_in_threads(functools.partial(_read, source), images)
    for problems in track(results, 'reading', len(images)):
        report.problems += problems
    occurring = {one.name for image in images for one in image.objects}
    names = classes or source.classes or sorted(occurring)
    entries = {image: _usable(image, names, report) for image in images if any(image.size)}
    report.images = len(entries)
    contents = {}
    for split in wanted:
        kept = {image: entries[image] for image in source.splits[split] if image in entries}
        contents[split] = _to_coco(kept, folder, names)
    if not any(content['annotations'] for content in contents.values()):
        counts = Counter(problem.kind for problem in report.problems)
        kinds = '; '.join(f'{kind} ({count})' for kind, count in counts.items())
        because = f' {kinds}. The first: {report.problems[0]}.' if counts else ''
        raise UserError(f'{folder} has no usable object, so nothing was written.{because}')
    for split, content in contents.items():
        write_atomically(files[split], json.dumps(content) + '\n')
    return Converted(source.title, names, files, _count(contents, names), report)


def _open(folder: Path, kind: str | None, classes: list[str] | None) -> AnnotatedFolder:
    if not folder.is_dir():
        raise UserError(f'There is no folder {folder.absolute()}.')
    kind = kind or find_format(folder)
    if kind is None or not FORMATS[kind].is_possible(folder):
        raise UserError(
            f'{folder} is in none of the formats. Looked for {LOOKED_FOR}. '
            f'Found {count_file_types(folder)}.'
        )
    try:
        return FORMATS[kind](folder, classes)
    except UnicodeDecodeError as error:
        raise UserError(f'A list of images or classes in {folder} is not UTF-8: {error}.') from None


def _find_leakage(source: AnnotatedFolder) -> list[Problem]:
    """Find images in several splits. trainval repeats them anyway."""
    splits = [images for split, images in source.splits.items() if split != 'trainval']
    count = Counter(image.path for images in splits for image in images)
    shared = [path for path, number in count.items() if number > 1]
    return [Problem('changed: in several splits', str(path)) for path in shared]


def _read(source: AnnotatedFolder, image: AnnotatedImage) -> list[Problem]:
    """Decode an image and read its objects; return the problems."""
    problems, shape = check_image(str(image.path))
    if shape is None:
        (problem,) = problems
        detail = f'{problem.kind.partition(": ")[2]}. {problem.detail}'.strip()
        return [Problem('left out: image unreadable', problem.file, detail)]
    size = shape[1], shape[0]
    try:
        image.objects, more = source.read(image.labels, size)
    except (ValueError, OSError) as error:
        unreadable = Problem('left out: annotations unreadable', str(image.labels), str(error))
        return [*problems, unreadable]
    image.size = size
    return problems + more


def _usable(image: AnnotatedImage, names: list[str], report: CheckReport) -> list[dict[str, Any]]:
    """Return COCO's entries of the objects that training can use, cut off at the borders."""
    size = {'width': image.size[0], 'height': image.size[1]}
    usable: dict[tuple, dict[str, Any]] = {}
    for one in image.objects:
        clipped = _entry(_clip(one, image.size), image.size)
        faults = [*check_object(_entry(one, image.size), size), *check_object(clipped, size)]
        errors = [fault for fault in faults if fault[0] != 'box reaches outside']
        key = one.name, one.box, one.polygon, one.mask
        if one.name not in names:
            kind, detail = 'left out: unknown class', f'it is not one of {", ".join(names)}'
        elif errors:
            kind, detail = f'left out: {errors[0][0]}', errors[0][1]
        elif key in usable:
            kind, detail = 'left out: duplicate', 'the same class and place as another object'
        else:
            usable[key] = {'category_id': names.index(one.name) + 1, **clipped}
            if not faults:
                continue
            kind, detail = 'changed: clipped', faults[0][1]
        where = f'{one.where} ({one.name})'
        report.problems.append(Problem(kind, str(image.labels), f'{where}: {detail}'))
    return list(usable.values())


def _clip(one: Object, size: tuple[int, int]) -> Object:
    """Cut an object off at the borders of its image; a NaN stays."""
    left, top, right, bottom = (
        min(max(number, 0.0), float(size[i % 2])) for i, number in enumerate(one.box)
    )
    polygon = [min(max(number, 0.0), float(size[i % 2])) for i, number in enumerate(one.polygon)]
    return one._replace(box=(left, top, right, bottom), polygon=tuple(polygon))


def _entry(one: Object, size: tuple[int, int]) -> dict[str, Any]:
    left, top, right, bottom = one.box
    area = (right - left) * (bottom - top)
    if one.polygon:
        x, y = np.reshape(one.polygon, (-1, 2)).T
        area = abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
    entry: dict[str, Any] = {
        'bbox': [_round(number) for number in (left, top, right - left, bottom - top)],
        'area': _round(area),
        # A crowd counts neither for nor against a detector, in mmdet's training and in COCO's
        # evaluation. "ignore" does not: mmdet would train on it as background, and the evaluation
        # overwrites it.
        'iscrowd': int(one.ignored),
    }
    if one.polygon:
        entry['segmentation'] = [[_round(number) for number in one.polygon]]
    if one.mask:
        entry.update(area=one.area, segmentation={'size': [*size[::-1]], 'counts': one.mask})
    return entry


def _round(number: float) -> float:
    """Round to a thousandth of a pixel; whole numbers have no decimal point."""
    rounded = round(number, 3)
    return int(rounded) if rounded.is_integer() else rounded


def _to_coco(
    entries: dict[AnnotatedImage, list[dict[str, Any]]], folder: Path, names: list[str]
) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, objects in entries.items():
        width, height = image.size
        name = Path(os.path.relpath(image.path, folder)).as_posix()
        entry = {'id': len(images) + 1, 'file_name': name, 'height': height, 'width': width}
        images.append(entry)
        for one in objects:
            ids = {'id': len(annotations) + 1, 'image_id': len(images)}
            annotations.append({**ids, **one})
    return {
        'info': {'description': CONVERTED},
        'categories': coco.categories(names, None),
        'images': images,
        'annotations': annotations,
    }


def _count(contents: dict[str, dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    images = {split: len(content['images']) for split, content in contents.items()}
    used = {
        split: Counter(one['category_id'] for one in content['annotations'])
        for split, content in contents.items()
    }
    rows = [
        {'': name, **{split: used[split][number] for split in contents}}
        for number, name in enumerate(names, 1)
    ]
    return [{'': 'images', **images}, *rows]
