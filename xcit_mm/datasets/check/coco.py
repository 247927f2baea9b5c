"""Checks the content of an annotation file in COCO's format."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .problems import Problem

IMAGE_KEYS = ('id', 'file_name', 'width', 'height')
ANNOTATION_KEYS = ('id', 'image_id', 'category_id', 'bbox', 'area')
# Problems that mmdet neither skips nor reports with the name of the file.
STOPPING = (
    'annotations: not COCO',
    'annotations: duplicate id',
    'annotations: not a number',
    'annotations: class missing',
)


def read_coco(path: str) -> dict[str, Any] | Problem:
    """The content of an annotation file, or the problem of the file as a whole."""
    try:
        content = json.loads(Path(path).read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        return Problem('annotations: not COCO', path, f'{type(error).__name__}: {error}')
    detail = _wrong_structure(content)
    return Problem('annotations: not COCO', path, detail) if detail else content


def _wrong_structure(content: Any) -> str | None:
    if not isinstance(content, dict):
        return 'not a dict of images, categories and annotations'
    for part in ('images', 'categories', 'annotations'):
        # Files of test images have no annotations.
        entries = content.get(part, [] if part == 'annotations' else None)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return f'{part} is not a list of entries'
        for entry in entries:
            ids = [entry[key] for key in ('id', 'image_id', 'category_id') if key in entry]
            if not all(isinstance(value, (int, str)) for value in ids):
                return f'an id of {part} is neither a number nor text: {ids}'
    return None


def check_coco(
    content: dict[str, Any], path: str, classes: Iterable[str] | None = None, masks: bool = False
) -> Iterator[Problem]:
    """Find problems in annotations.

    Args:
        content (dict): What :func:`read_coco` returned.
        path (str): Its file, for the messages.
        classes (Iterable[str], optional): The classes of the config. Defaults to None.
        masks (bool): Whether every object needs a mask. Defaults to False.
    """
    yield from _check_categories(content['categories'], path, classes)
    yield from _check_images(content['images'], path)
    images = {image.get('id'): image for image in content['images']}
    categories = {category.get('id') for category in content['categories']}
    seen = set()
    for annotation in content.get('annotations', []):
        where = f'annotation {annotation.get("id")!r}'
        if missing := [key for key in ANNOTATION_KEYS if key not in annotation]:
            yield Problem('annotations: not COCO', path, f'{where} has no {missing[0]}')
            continue
        if annotation['id'] in seen:
            yield Problem('annotations: duplicate id', path, f'two annotations: {annotation["id"]}')
        seen.add(annotation['id'])
        image = images.get(annotation['image_id'])
        if annotation['category_id'] not in categories:
            detail = f'{where}: category {annotation["category_id"]}'
            yield Problem('annotations: unknown category', path, detail)
        if image is None:
            detail = f'{where}: image {annotation["image_id"]}'
            yield Problem('annotations: unknown image', path, detail)
        if image is None or not _is_whole(image):
            continue
        for kind, detail in _check_object(annotation, image, masks):
            detail = f'{where} of {image["file_name"]}: {detail}'
            yield Problem(f'annotations: {kind}', path, detail)


def count_used(content: dict[str, Any], dataset: Any) -> int:
    """How many images mmdet uses after ``filter_cfg``, which it applies in training only.

    Args:
        content (dict): Annotations without problems that stop a run.
        dataset (CocoDataset): Their dataset.
    """
    filter_cfg = {} if dataset.test_mode else dataset.filter_cfg or {}
    names, shortest = dataset.metainfo['classes'], filter_cfg.get('min_size', 0)
    classes = {c['id'] for c in content['categories'] if c['name'] in names}
    annotations = content.get('annotations', [])
    with_objects = {a['image_id'] for a in annotations if a['category_id'] in classes}
    keeps_empty = not filter_cfg.get('filter_empty_gt', False)
    return sum(
        (keeps_empty or image['id'] in with_objects)
        and min(image['width'], image['height']) >= shortest
        for image in content['images']
    )


def _is_whole(image: dict) -> bool:
    return all(key in image for key in IMAGE_KEYS) and finite((image['width'], image['height']))


def _check_images(images: list[dict], path: str) -> Iterator[Problem]:
    seen = set()
    for image in images:
        where = f'image {image.get("id")!r} ({image.get("file_name")})'
        if missing := [key for key in IMAGE_KEYS if key not in image]:
            yield Problem('annotations: not COCO', path, f'{where} has no {missing[0]}')
        elif not _is_whole(image):
            yield Problem('annotations: not a number', path, f'{where}: its size')
        if image.get('id') in seen:
            yield Problem('annotations: duplicate id', path, f'two images: {image["id"]}')
        seen.add(image.get('id'))


def _check_categories(
    categories: list[dict], path: str, classes: Iterable[str] | None
) -> Iterator[Problem]:
    seen = set()
    for category in categories:
        if not {'id', 'name'} <= category.keys():
            yield Problem('annotations: not COCO', path, f'no id or name: category {category}')
        elif category['id'] in seen:
            yield Problem('annotations: duplicate id', path, f'two categories: {category["id"]}')
        seen.add(category.get('id'))
    known = {category.get('name') for category in categories}
    for name in classes or ():
        if name not in known:
            yield Problem('annotations: class missing', path, f'{name} is not a category')


def _check_object(annotation: dict, image: dict, masks: bool) -> Iterator[tuple[str, str]]:
    box, segmentation = annotation['bbox'], annotation.get('segmentation')
    polygons = segmentation if isinstance(segmentation, list) else []
    if not isinstance(box, list) or len(box) != 4:
        yield 'not COCO', f'the box is {box}, not x, y, width, height'
        return
    if not all(isinstance(polygon, list) for polygon in polygons):
        yield 'not COCO', 'segmentation is not a list of polygons, each a list of numbers'
        return
    numbers = [*box, annotation['area'], *(n for polygon in polygons for n in polygon)]
    if not finite(numbers):
        yield 'not a number', 'NaN, infinity or a non-number in the box, area or polygons'
        return
    x, y, width, height = box
    right, bottom = image['width'], image['height']
    if width < 1 or height < 1 or annotation['area'] <= 0:
        yield 'empty box', f'{width} x {height}, area {annotation["area"]}'
    elif x >= right or y >= bottom or x + width <= 0 or y + height <= 0:
        yield 'box outside', f'{box} in an image of {right} x {bottom}'
    elif x < -1 or y < -1 or x + width > right + 1 or y + height > bottom + 1:
        yield 'box reaches outside', f'{box} in an image of {right} x {bottom}'
    if masks and not segmentation:
        yield 'no mask', 'segmentation is empty or missing'
    elif polygons and not any(len(p) >= 6 and len(p) % 2 == 0 for p in polygons):
        yield 'empty polygon', f'{polygons}'


def finite(numbers: Iterable[Any]) -> bool:
    return all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
