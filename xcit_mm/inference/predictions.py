"""Writes predictions: detections to one file in COCO's layout, labels to one PNG per image."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..files import replacing, write_atomically
from .journal import Journal


def results_path(task: str, out_dir: Path) -> Path:
    """Where predictions go: a file of detections, or a folder of label PNGs."""
    return out_dir / ('predictions.json' if task == 'mmdet' else 'labels')


def write_labels(path: Path, sample: Any, classes: int) -> None:
    """Write a segmentor's predictions for one image.

    Args:
        path (Path): A PNG, of 8 bits if that is enough for all classes, else of 16.
        sample (SegDataSample): The predictions.
        classes (int): Number of classes of the segmentor.
    """
    labels = sample.pred_sem_seg.data[0].cpu().numpy()
    labels = labels.astype(np.uint8 if classes <= 256 else np.uint16)
    write_atomically(path, cv2.imencode('.png', labels)[1].tobytes())


def write_detections(path: Path, classes: Iterable[str], journal: Journal) -> None:
    """Write a detector's predictions in COCO's layout, one image at a time.

    Args:
        path (Path): The file.
        classes (Iterable[str]): Names of the classes.
        journal (Journal): Contains what :func:`detections` returned for each image.
    """
    categories = [{'id': i, 'name': name} for i, name in enumerate(classes)]
    with replacing(path) as unfinished, unfinished.open('w', encoding='utf-8') as file:
        file.write(f'{{"categories": {json.dumps(categories)},\n"annotations": [')
        _write_items(file, _annotations(journal))
        file.write('\n],\n"images": [')
        _write_items(file, _images(journal))
        file.write('\n]}\n')


def _write_items(file: Any, items: Iterable[dict[str, Any]]) -> None:
    for i, item in enumerate(items):
        file.write((',\n' if i else '\n') + json.dumps(item))


def _images(journal: Journal) -> Iterator[dict[str, Any]]:
    for i, record in enumerate(_detected(journal)):
        size = {key: record[key] for key in ('height', 'width')}
        yield {'id': i, 'file_name': record['file'], **size}


def _annotations(journal: Journal) -> Iterator[dict[str, Any]]:
    for i, record in enumerate(_detected(journal)):
        for annotation in record['annotations']:
            yield {'image_id': i, **annotation}


def _detected(journal: Journal) -> Iterator[dict[str, Any]]:
    return (record for record in journal.records() if 'annotations' in record)  # videos have none


def detections(sample: Any) -> dict[str, Any]:
    """A detector's predictions for one image: its size, and COCO annotations with scores."""
    from mmdet.structures.mask import encode_mask_results

    instances = sample.pred_instances
    height, width = sample.ori_shape[:2]
    annotations = []
    masks = encode_mask_results(instances.masks.cpu().numpy()) if 'masks' in instances else None
    for i, (x1, y1, x2, y2) in enumerate(instances.bboxes.cpu().numpy().tolist()):
        annotation = {
            'category_id': int(instances.labels[i]),
            'bbox': [x1, y1, x2 - x1, y2 - y1],
            'score': float(instances.scores[i]),
        }
        if masks is not None:
            counts = masks[i]['counts']
            counts = counts.decode() if isinstance(counts, bytes) else counts
            annotation['segmentation'] = {'size': list(masks[i]['size']), 'counts': counts}
        annotations.append(annotation)
    return {'height': height, 'width': width, 'annotations': annotations}
