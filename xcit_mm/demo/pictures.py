"""Pictures of predictions next to the ground truth, by mmdet's and mmseg's own visualizers."""

import json
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
import torch
from mmengine.structures import InstanceData, PixelData
from pycocotools.coco import COCO

# The images are small. Enlarged, they are not covered by the labels.
ENLARGE = 3
SCORE_THRESHOLD = 0.5


def draw_detections(data_root: Path, predictions: Path, folder: Path) -> list[Path]:
    """Draw boxes and masks: ground truth on the left, prediction on the right.

    Args:
        data_root (Path): Folder of the built-in dataset.
        predictions (Path): Folder that ``xcit-mm infer`` wrote.
        folder (Path): Folder for the pictures.
    """
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer

    annotations = COCO(str(data_root / 'coco' / 'annotations' / 'instances_val2017.json'))
    content = json.loads((predictions / 'predictions.json').read_text(encoding='utf-8'))
    visualizer = DetLocalVisualizer()
    visualizer.dataset_meta = {
        'classes': [category['name'] for category in content['categories']],
        'palette': _palette(len(content['categories'])),
    }
    by_name = {image['file_name']: image['id'] for image in annotations.imgs.values()}
    # The ids of both are those of the classes in their order, from 1.
    labels = {category['id']: i for i, category in enumerate(content['categories'])}
    pictures = []
    for image in content['images']:
        path = Path(image['file_name'])
        found = [a for a in content['annotations'] if a['image_id'] == image['id']]
        truth = [a for a in annotations.imgToAnns[by_name[path.name]] if not a['iscrowd']]
        truth = [{**a, 'score': 1.0} for a in truth]
        sample = DetDataSample(
            gt_instances=_instances(truth, labels, annotations),
            pred_instances=_instances(found, labels, annotations),
        )
        pictures.append(folder / f'{path.stem}.png')
        visualizer.add_datasample(
            path.stem,
            _enlarged(path),
            sample,
            pred_score_thr=SCORE_THRESHOLD,
            out_file=str(pictures[-1]),
        )
    return pictures


def _instances(
    annotations: list[dict[str, Any]], labels: dict[int, int], coco: COCO
) -> InstanceData:
    boxes = torch.tensor([a['bbox'] for a in annotations]).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    instances = InstanceData(bboxes=boxes * ENLARGE)
    indices = [labels[a['category_id']] for a in annotations]
    instances.labels = torch.tensor(indices, dtype=torch.long)
    instances.scores = torch.tensor([a['score'] for a in annotations])
    masks = [_enlarge(_mask(a, coco), cv2.INTER_NEAREST).astype(bool) for a in annotations]
    if masks:
        instances.masks = np.stack(masks)
    return instances


def _mask(annotation: dict[str, Any], coco: COCO) -> np.ndarray:
    if isinstance(annotation['segmentation'], dict):
        from pycocotools import mask as coco_mask

        return coco_mask.decode(annotation['segmentation'])
    return coco.annToMask(annotation)


def draw_segmentations(
    data_root: Path, predictions: Path, folder: Path, classes: list[str], palette: list[list[int]]
) -> list[Path]:
    """Draw label maps: ground truth on the left, prediction on the right.

    Args:
        data_root (Path): Folder of the built-in dataset.
        predictions (Path): Folder that ``xcit-mm infer`` wrote.
        folder (Path): Folder for the pictures.
        classes (list[str]): Names of the classes.
        palette (list[list[int]]): Their colors.
    """
    from mmseg.structures import SegDataSample
    from mmseg.visualization import SegLocalVisualizer

    visualizer = SegLocalVisualizer(alpha=0.7)
    visualizer.dataset_meta = {'classes': classes, 'palette': palette}
    truth = data_root / 'ade' / 'annotations' / 'validation'
    images = data_root / 'ade' / 'images' / 'validation'
    pictures = []
    for path in sorted((predictions / 'labels').glob('*.png')):
        expected = mmcv.imread(str(truth / path.name), flag='unchanged').astype(np.int16) - 1
        predicted = mmcv.imread(str(path), flag='unchanged').astype(np.int16)
        sample = SegDataSample(gt_sem_seg=_pixels(expected), pred_sem_seg=_pixels(predicted))
        pictures.append(folder / path.name)
        visualizer.add_datasample(
            path.stem,
            _enlarged(images / f'{path.stem}.jpg'),
            sample,
            with_labels=False,
            out_file=str(pictures[-1]),
        )
    return pictures


def _pixels(labels: np.ndarray) -> PixelData:
    return PixelData(data=torch.from_numpy(_enlarge(labels, cv2.INTER_NEAREST))[None])


def _enlarged(path: Path) -> np.ndarray:
    return mmcv.bgr2rgb(_enlarge(mmcv.imread(str(path)), cv2.INTER_CUBIC))


def _enlarge(image: np.ndarray, interpolation: int) -> np.ndarray:
    return cv2.resize(image, None, fx=ENLARGE, fy=ENLARGE, interpolation=interpolation)


def _palette(count: int) -> list[tuple[int, int, int]]:
    colors = [(230, 60, 60), (60, 180, 75), (70, 110, 240), (245, 180, 40), (190, 80, 210)]
    return [colors[i % len(colors)] for i in range(count)]
