"""Pictures of predictions next to the ground truth, enlarged: the images of the demo are small."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine.config import Config
from pycocotools.coco import COCO

from xcit_mm_runtime.draw import side_by_side
from xcit_mm_runtime.files import write_png
from xcit_mm_runtime.inputs import read_image
from xcit_mm_runtime.results import Detections, Segmentation

ENLARGE = 3
SCORE_THRESHOLD = 0.5


def draw_detections(cfg: Config, predictions: Path, folder: Path) -> list[Path]:
    """Draw boxes and masks: ground truth on the left, prediction on the right.

    Args:
        cfg (Config): The config of the detector.
        predictions (Path): Folder that ``xcit-mm infer --ann-file`` wrote.
        folder (Path): Folder for the pictures.

    Returns:
        list[Path]: The pictures.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(cfg.test_evaluator.ann_file)
    found = json.loads((predictions / 'predictions.json').read_text(encoding='utf-8'))
    pictures = []
    for entry in found['images']:
        objects = {
            'ground truth': [a for a in truth.imgToAnns[entry['id']] if not a['iscrowd']],
            'prediction': [a for a in found['annotations'] if a['image_id'] == entry['id']],
        }
        image = _enlarge(read_image(entry['file_name']), cv2.INTER_CUBIC)
        drawn = {title: _draw_objects(image, truth, some) for title, some in objects.items()}
        pictures.append(folder / f'{Path(entry["file_name"]).stem}.png')
        write_png(pictures[-1], side_by_side(drawn))
    return pictures


def _draw_objects(image: np.ndarray, truth: COCO, objects: list[dict[str, Any]]) -> np.ndarray:
    if not objects:
        return image
    boxes = ENLARGE * np.array([a['bbox'] for a in objects])
    boxes[:, 2:] += boxes[:, :2]
    masks = [_enlarge(truth.annToMask(a), cv2.INTER_NEAREST) for a in objects]
    # The ids of the classes count from 1.
    labels = np.array([a['category_id'] - 1 for a in objects])
    found = Detections(
        boxes,
        np.array([a['score'] for a in objects]) if 'score' in objects[0] else None,
        labels,
        np.array(masks, bool),
        [category['name'] for category in truth.cats.values()],
    )
    return found.draw(image, SCORE_THRESHOLD)


def draw_segmentations(cfg: Config, predictions: Path, folder: Path) -> list[Path]:
    """Draw label maps: ground truth on the left, prediction on the right.

    Args:
        cfg (Config): The config of the segmentor.
        predictions (Path): Folder that ``xcit-mm infer`` wrote.
        folder (Path): Folder for the pictures.

    Returns:
        list[Path]: The pictures.
    """
    root, pictures = Path(cfg.shapes.root) / 'ade', []
    for path in sorted((predictions / 'labels').glob('*.png')):
        truth = mmcv.imread(root / 'annotations/validation' / path.name, flag='unchanged')
        labels = {
            'ground truth': truth - np.uint8(1),  # 0 becomes 255, which is ignored
            'prediction': mmcv.imread(path, flag='unchanged'),
        }
        photo = read_image(root / 'images/validation' / f'{path.stem}.jpg')
        image = _enlarge(photo, cv2.INTER_CUBIC)
        drawn = {
            title: Segmentation(
                _enlarge(some, cv2.INTER_NEAREST), cfg.metainfo.classes, cfg.metainfo.palette
            ).draw(image)
            for title, some in labels.items()
        }
        pictures.append(folder / path.name)
        write_png(pictures[-1], side_by_side(drawn))
    return pictures


def _enlarge(image: np.ndarray, interpolation: int) -> np.ndarray:
    return cv2.resize(image, None, fx=ENLARGE, fy=ENLARGE, interpolation=interpolation)
