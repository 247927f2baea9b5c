"""Reads the JSON files of labelme, one beside each image."""

import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..folders import images_by_stem, split_of
from ..problems import Problem
from .formats import AnnotatedFolder, AnnotatedImage, Object

# Corners of the polygon that stands for a circle.
CORNERS = 32


class LabelmeFolder(AnnotatedFolder):
    """JSON files with ``shapes``, beside their images.

    Polygons, rectangles and circles are objects. Those of one class that share a ``group_id`` are
    parts of one object. If there are only rectangles, they are boxes, not masks.
    """

    title = 'labelme'

    @staticmethod
    def score(folder: Path) -> int:
        return 2 if any(map(_is_labelme, folder.rglob('*.json'))) else 0

    def __init__(self, folder: Path, classes: list[str] | None = None) -> None:
        super().__init__(folder)
        self.has_masks = False
        for path in sorted(folder.rglob('*.json')):
            if not _is_labelme(path):
                continue
            try:
                content = _load(path)
                areas = filter(_polygon, content['shapes'])
                self.has_masks |= any(shape.get('shape_type') != 'rectangle' for shape in areas)
                written = str(content.get('imagePath')).replace('\\', '/')
            except ValueError as error:
                self.leave_out('annotations unreadable', path, str(error))
                continue
            stated = Path(written).name
            beside = images_by_stem(path.parent)
            elsewhere = images_by_stem(_within(folder, path.parent / Path(written).parent))
            both = [*beside.get(Path(stated).stem, []), *elsewhere.get(Path(stated).stem, [])]
            same = list({p.resolve(): p for p in both if p.name == stated}.values())
            images = same[:1] or beside.get(path.stem, [])
            if len(images) == 1:
                item = AnnotatedImage(images[0], path)
                split = split_of(path.parent.relative_to(folder).parts)
                self.splits.setdefault(split, []).append(item)
            elif images:
                self.leave_out_ambiguous(images)
            else:
                self.leave_out('image missing', path, f'{written} is neither there nor beside it')

    def read(self, labels: Path, size: tuple[int, int]) -> tuple[list[Object], list[Problem]]:
        """Read the shapes of an image."""
        groups: dict[tuple, list[tuple[str, list[float]]]] = {}
        problems = []
        for number, shape in enumerate(_load(labels)['shapes'], 1):
            where, name = f'shape {number}', str(shape.get('label') or '').strip()
            polygon = _polygon(shape)
            if polygon is None:
                detail = f'{where} ({name}): {shape.get("shape_type")} with {shape.get("points")}'
                problems.append(Problem('left out: line unreadable', str(labels), detail[:200]))
                continue
            group = shape.get('group_id')
            is_part = group is not None and self.has_masks
            key = (name, 'group', group) if is_part else (name, where)
            groups.setdefault(key, []).append((where, polygon))
        objects = []
        for (name, *_), parts in groups.items():
            where, polygon = parts[0]
            if len(parts) == 1:
                one = Object.of_polygon(name, polygon, where)
                objects.append(one if self.has_masks else one._replace(polygon=()))
                continue
            mask = np.zeros(size[::-1], np.uint8)
            for _, part in parts:
                corners = np.reshape(part, (-1, 1, 2)).round().astype(np.int32)
                cv2.fillPoly(mask, [corners], 1)
            if mask.any():
                objects.append(Object.of_mask(name, mask > 0, where))
        return objects, problems


def _within(folder: Path, place: Path) -> Path:
    """Return a place, or the folder itself if it lies outside: files do not lead elsewhere."""
    return place if place.resolve().is_relative_to(folder.resolve()) else folder


def _is_labelme(path: Path) -> bool:
    """Return whether a file begins as those of labelme do; others may have gigabytes."""
    with path.open('rb') as file:
        return b'"shapes"' in file.read(4096)


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f'not valid JSON: {error}') from None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        raise ValueError('it has no list of shapes')
    return content


def _polygon(shape: Any) -> list[float] | None:
    """Return the corners of a shape, x and y in turn; None if it is no area."""
    if not isinstance(shape, dict):
        return None
    try:
        points = [(float(x), float(y)) for x, y in shape.get('points') or ()]
    except (TypeError, ValueError):
        return None
    if not all(math.isfinite(number) for point in points for number in point):
        return None
    kind = shape.get('shape_type') or 'polygon'
    if kind == 'rectangle' and len(points) == 2:
        (left, top), (right, bottom) = points
        points = [(left, top), (right, top), (right, bottom), (left, bottom)]
    elif kind == 'circle' and len(points) == 2:
        (x, y), edge = points
        radius = math.dist((x, y), edge)
        angles = [2 * math.pi * i / CORNERS for i in range(CORNERS)]
        points = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
    elif kind not in ('polygon', 'rectangle') or len(points) < 3:
        return None
    return [number for point in points for number in point]
