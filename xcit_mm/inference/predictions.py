"""Writes predictions: detections to one file in COCO's layout, labels to one PNG per image."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..files import write_atomically
from .coco_writer import coco_writer


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


@contextmanager
def prediction_writer(
    inferencer: Any, task: str, out_dir: Path, names: dict[Path, str]
) -> Iterator[Callable[[Path, Any], None]]:
    """A function that writes the predictions of one image.

    Args:
        inferencer: Mmdet's or mmseg's inferencer.
        task (str): ``mmdet`` or ``mmseg``.
        out_dir (Path): Folder for predictions.
        names (dict[Path, str]): Name of each image's results.
    """
    results = results_path(task, out_dir)
    classes = inferencer.visualizer.dataset_meta['classes']
    if task == 'mmdet':
        with coco_writer(results, classes) as writer:
            yield writer.add
        return
    results.mkdir(exist_ok=True)
    yield lambda path, sample: write_labels(results / f'{names[path]}.png', sample, len(classes))
