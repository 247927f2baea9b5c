"""Writes predictions: detections to one file in COCO's layout, labels to one PNG per image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from xcit_mm_deploy.coco import write_items, write_predictions

from ..files import replacing, write_atomically
from .ids import Ids
from .journal import Journal

# COCO's results format, which pycocotools reads: one file per kind, as masks have other areas.
RESULTS = {'bbox': 'results.bbox.json', 'segmentation': 'results.segm.json'}


def results_path(task: str, out_dir: Path) -> Path:
    """Where predictions go: a file of detections, or a folder of label PNGs."""
    return out_dir / ('predictions.json' if task == 'detection' else 'labels')


def write_labels(path: Path, labels: np.ndarray) -> None:
    """Write a segmentor's predictions for one image.

    Args:
        path (Path): A PNG, of 8 or 16 bits.
        labels (np.ndarray): uint8 or uint16 (H, W).
    """
    write_atomically(path, cv2.imencode('.png', labels)[1].tobytes())


def write_detections(path: Path, ids: Ids, journal: Journal) -> None:
    """Write a detector's predictions in COCO's layout, one image at a time.

    If the ids are those of an annotation file, the files of :data:`RESULTS` are written next to it.

    Args:
        path (Path): The file.
        ids (Ids): Which ids the classes have.
        journal (Journal): Contains the image and the annotations of each record.
    """
    with replacing(path) as unfinished, unfinished.open('w') as file:
        images = (record['image'] for record in _detected(journal))
        write_predictions(file, ids.meaning, ids.categories, _annotations(journal), images)
    for kind, name in RESULTS.items():
        path.with_name(name).unlink(missing_ok=True)
        if not ids.annotated or not any(kind in a for a in _annotations(journal)):
            continue
        others = RESULTS.keys() - {kind}
        with replacing(path.with_name(name)) as unfinished, unfinished.open('w') as file:
            file.write('[')
            write_items(file, (_without(a, others) for a in _annotations(journal)))
            file.write('\n]\n')


def _without(item: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _annotations(journal: Journal) -> Iterator[dict[str, Any]]:
    return (entry for record in _detected(journal) for entry in record['annotations'])


def _detected(journal: Journal) -> Iterator[dict[str, Any]]:
    return (record for record in journal.records() if 'annotations' in record)  # videos have none
