"""Checks the content of an annotation file in COCO's format."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..problems import Problem

REQUIRED_KEYS = {
    'categories': ('id', 'name'),
    'images': ('id', 'file_name', 'width', 'height'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area'),
}
# Problems that mmdet neither skips nor reports with the name of the file.
STOPPING = (
    'annotations: not COCO',
    'annotations: duplicate id',
    'annotations: duplicate name',
    'annotations: mask of another size',
    'annotations: not a number',
    'annotations: class missing',
)
# Boxes may reach this many pixels over the border: programs round differently.
TOLERANCE = 1


def check_coco(
    content: dict[str, Any], path: str, classes: Iterable[str] = (), masks: bool = False
) -> Iterator[Problem]:
    """Find problems in annotations.

    Args:
        content (dict): As returned by :func:`xcit_mm_runtime.coco.read_coco`.
        path (str): Its file, for the messages.
        classes (Iterable[str]): The classes of the config. Defaults to none.
        masks (bool): Whether every object needs a mask. Defaults to False.
    """
    for kind, detail in _find_faults(content, classes, masks):
        yield Problem(f'annotations: {kind}', path, detail)


def _find_faults(
    content: dict[str, Any], classes: Iterable[str], masks: bool
) -> Iterator[tuple[str, str]]:
    """Yield the kind of each problem, without its first word, and its detail."""
    ids = {}
    for part, keys in REQUIRED_KEYS.items():
        entries = content.get(part, [])
        ids[part] = Counter(entry.get('id') for entry in entries)
        for entry in entries:
            if missing := [key for key in keys if key not in entry]:
                yield 'not COCO', f'entry {entry.get("id")!r} of {part} has no {missing[0]}'
        for number, count in ids[part].items():
            if count > 1:
                yield 'duplicate id', f'{count} {part} have the id {number!r}'
    names = Counter(category.get('name') for category in content['categories'])
    for name in classes:
        if not names[name]:
            yield 'class missing', f'{name} is not a category'
        elif names[name] > 1:
            yield 'duplicate name', f'{names[name]} categories have the name {name}'
    sized = {}
    for image in _complete(content, 'images'):
        if are_finite((image['width'], image['height'])):
            sized[image['id']] = image
        else:
            yield 'not a number', f'the size of image {image["id"]!r} ({image["file_name"]})'
    for annotation in _complete(content, 'annotations'):
        where = f'annotation {annotation["id"]!r}'
        if annotation['category_id'] not in ids['categories']:
            yield 'unknown category', f'{where}: category {annotation["category_id"]!r}'
        if annotation['image_id'] not in ids['images']:
            yield 'unknown image', f'{where}: image {annotation["image_id"]!r}'
        elif annotation['image_id'] in sized:
            image = sized[annotation['image_id']]
            for kind, detail in check_object(annotation, image, masks):
                yield kind, f'{where} of {image["file_name"]}: {detail}'


def _complete(content: dict[str, Any], part: str) -> list[dict]:
    keys = set(REQUIRED_KEYS[part])
    return [entry for entry in content.get(part, []) if keys <= entry.keys()]


def check_object(
    annotation: dict[str, Any], image: dict[str, Any], masks: bool = False
) -> Iterator[tuple[str, str]]:
    """Find what is wrong with the box, area and mask of an object.

    Args:
        annotation (dict): Its entry, with a box and an area.
        image (dict): The entry of its image, with a width and height.
        masks (bool): Whether it needs a mask. Defaults to False.

    Yields:
        tuple[str, str]: A kind of :mod:`..problems`, without its first word, and the detail.
    """
    box, segmentation = annotation['bbox'], annotation.get('segmentation')
    polygons = segmentation if isinstance(segmentation, list) else []
    if not isinstance(box, list) or len(box) != 4:
        yield 'not COCO', f'the box is {box}, not x, y, width, height'
        return
    if not all(isinstance(polygon, list) for polygon in polygons):
        yield 'not COCO', 'segmentation is not a list of polygons, each a list of numbers'
        return
    if not are_finite([*box, annotation['area'], *itertools.chain(*polygons)]):
        yield 'not a number', 'NaN, infinity or a non-number in the box, area or polygons'
        return
    x, y, width, height = box
    right, bottom = image['width'], image['height']
    place = f'{", ".join(f"{number:g}" for number in box)} in an image of {right} x {bottom}'
    if width < 1 or height < 1 or annotation['area'] <= 0:
        yield 'empty box', f'{width:g} x {height:g}, area {annotation["area"]:g}'
    elif x >= right or y >= bottom or x + width <= 0 or y + height <= 0:
        yield 'box outside', place
    elif min(x, y) < -TOLERANCE or x + width > right + TOLERANCE or y + height > bottom + TOLERANCE:
        yield 'box reaches outside', place
    if masks and not segmentation:
        yield 'no mask', 'segmentation is empty or missing'
    elif polygons and not any(len(p) >= 6 and len(p) % 2 == 0 for p in polygons):
        yield 'empty polygon', f'{polygons}'
    elif isinstance(segmentation, dict) and segmentation.get('size') != [bottom, right]:
        detail = f'{segmentation.get("size")}, and the image has [{bottom}, {right}]'
        yield 'mask of another size', f'its height and width are {detail}'


def are_finite(numbers: Iterable[Any]) -> bool:
    """Return whether all are numbers, and neither NaN nor infinite."""
    return all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
