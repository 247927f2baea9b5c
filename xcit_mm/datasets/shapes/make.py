"""Writes scenes of shapes in the layouts of COCO and ADE20k.

``root/coco`` and ``root/ade`` are what mmdet's ``CocoDataset`` and mmseg's datasets read without
special code. The two have the same images.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from filelock import FileLock

from xcit_mm_runtime import coco, rle
from xcit_mm_runtime.files import check_new
from xcit_mm_runtime.progress import track

from ...errors import UserError
from .draw import CLASSES, Scene, Shape, draw_scene

# split -> names of its folders in COCO and in ADE20k
SPLITS = {'train': ('train2017', 'training'), 'val': ('val2017', 'validation')}
SPEC_FILE = 'shapes.json'


def make_shapes(
    root: str | os.PathLike,
    train: int = 400,
    val: int = 100,
    size: int = 128,
    seed: int = 0,
    negatives: float = 0.0,
    overwrite: bool = False,
) -> Path:
    """Make a dataset; the same arguments give the same bytes.

    Args:
        root (str or PathLike): Its folder, created completely or not at all.
        train (int): Number of images for training. Defaults to 400.
        val (int): Number of images for validation. Defaults to 100.
        size (int): Height and width of most images; a third are wider or taller. Defaults to 128.
        seed (int): Seed of all randomness. Defaults to 0.
        negatives (float): Fraction of the images that are negatives: dark shapes on light grounds.
            Then only the whole image tells shape from ground. Defaults to 0.
        overwrite (bool): Whether an existing folder is replaced. Defaults to False.

    Raises:
        UserError: If the folder exists.
    """
    root = Path(root)
    if min(train, val) < 1 or size < 32 or seed < 0 or not 0 <= negatives <= 1:
        raise ValueError(
            'train and val must be at least 1, size at least 32, seed at least 0, negatives from '
            '0 to 1'
        )
    check_new(root, overwrite)
    unfinished = root.with_name(root.name + '.unfinished')
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (split, count) in enumerate({'train': train, 'val': val}.items()):
        # Each image has its own random stream, so their order does not matter.
        streams = (np.random.default_rng([seed, number, index]) for index in range(count))
        scenes = (draw_scene(rng, *_image_size(rng, size), negatives) for rng in streams)
        _write_split(unfinished, split, track(scenes, f'drawing shapes for {split}', count))
    spec = {'train': train, 'val': val, 'size': size, 'seed': seed, 'negatives': negatives}
    (unfinished / SPEC_FILE).write_text(json.dumps(spec) + '\n', encoding='utf-8')
    if root.exists():
        shutil.rmtree(root)
    unfinished.rename(root)
    return root


def ensure_shapes(root: str | os.PathLike, **spec: Any) -> Path:
    """Make a dataset unless it exists with these arguments; see :func:`make_shapes`.

    Processes that start together wait for the one that makes it.

    Raises:
        UserError: If it exists with other arguments.
    """
    root = Path(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{root}.lock'):
        if not root.exists():
            return make_shapes(root, **spec)
        path = root / SPEC_FILE
        found = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
        # The first versions drew no negatives.
        made, wanted = {'negatives': 0.0, **found}, {'negatives': 0.0, **spec}
        if any(made.get(key) != value for key, value in wanted.items()):
            raise UserError(
                f'{root} exists, but was made with {found}, not {spec}. Remove it, or choose '
                'another folder.'
            )
    return root


def _image_size(rng: np.random.Generator, size: int) -> tuple[int, int]:
    longer = size * 5 // 4
    sizes = [*[(size, size)] * 4, (size, longer), (longer, size)]
    return sizes[rng.integers(6)]


def _write_split(root: Path, split: str, scenes: Iterable[Scene]) -> None:
    """Write the images and annotations of one split in both layouts."""
    coco_name, ade_name = SPLITS[split]
    coco_images, coco_file = root / 'coco' / coco_name, f'instances_{coco_name}.json'
    coco_folder = root / 'coco' / 'annotations'
    ade_images, ade_labels = (root / 'ade' / kind / ade_name for kind in ('images', 'annotations'))
    for folder in (coco_images, coco_folder, ade_images, ade_labels):
        folder.mkdir(parents=True, exist_ok=True)
    images: list[dict] = []
    annotations: list[dict] = []
    for number, scene in enumerate(scenes, 1):
        height, width = scene.image.shape[:2]
        name, stem = f'{number:012d}.jpg', f'ADE_{split}_{number:08d}'
        encoded = cv2.imencode('.jpg', scene.image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
        (coco_images / name).write_bytes(encoded)
        (ade_images / f'{stem}.jpg').write_bytes(encoded)
        cv2.imwrite(str(ade_labels / f'{stem}.png'), label_image(scene))
        images.append({'id': number, 'file_name': name, 'height': height, 'width': width})
        for shape in scene.shapes:
            ids = {'id': len(annotations) + 1, 'image_id': number}
            annotations.append({**ids, **_annotation(shape)})
    content = {
        'info': {'description': 'shapes, made by xcit_mm'},
        'licenses': [],
        'categories': coco.categories(CLASSES, None),
        'images': images,
        'annotations': annotations,
    }
    (coco_folder / coco_file).write_text(json.dumps(content), encoding='utf-8')


def _annotation(shape: Shape) -> dict[str, Any]:
    rows, columns = np.nonzero(shape.mask)
    x, y = int(columns.min()), int(rows.min())
    box = [x, y, int(columns.max()) - x + 1, int(rows.max()) - y + 1]
    annotation = {'category_id': shape.label + 1, 'bbox': box, 'iscrowd': int(shape.is_crowd)}
    if shape.is_crowd:
        area = float(shape.mask.sum())
        return {**annotation, 'segmentation': rle.encode(shape.mask), 'area': area}
    polygons = _polygons(shape.mask)
    # The area of what was written: as in COCO, polygons have no holes.
    outlines = (np.array(polygon, np.float32).reshape(-1, 2) for polygon in polygons)
    area = sum(map(cv2.contourArea, outlines))
    return {**annotation, 'segmentation': polygons, 'area': round(area, 2)}


def _polygons(mask: np.ndarray) -> list[list[float]]:
    """Return outlines of the visible parts; in COCO's polygons pixel (x, y) covers x...x + 1."""
    enlarged = cv2.resize(mask.astype(np.uint8), None, fx=4, fy=4, interpolation=cv2.INTER_NEAREST)
    contours, _ = cv2.findContours(enlarged, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    polygons = []
    for contour in sorted(contours, key=lambda c: c[:, 0].tolist()):
        simple = cv2.approxPolyDP(contour, 1.5, closed=True)[:, 0]
        if len(simple) >= 3:
            polygons.append(((simple + 0.5) / 4).round(2).ravel().tolist())
    if not polygons:  # a few pixels in a line: their box
        rows, columns = np.nonzero(mask)
        x, y, right, low = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        polygons = [[float(v) for v in (x, y, right, y, right, low, x, low)]]
    return polygons


def label_image(scene: Scene) -> np.ndarray:
    """Return the label PNG: outlines of shapes and crowds are unlabeled, the rest has a class."""
    labels = np.ones(scene.image.shape[:2], np.uint8)
    for shape in scene.shapes:
        labels[shape.mask] = 0 if shape.is_crowd else shape.label + 2
    edges = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones((2, 2), np.uint8))
    labels[edges > 0] = 0
    return labels
