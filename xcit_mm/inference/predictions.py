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
    if task == 'mmdet':
        with coco_writer(results, inferencer.visualizer.dataset_meta['classes']) as writer:
            yield writer.add
        return

    def write_labels(path: Path, sample: Any) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8)
        content = cv2.imencode('.png', labels)[1].tobytes()
        write_atomically(results / f'{names[path]}.png', content)

    results.mkdir(exist_ok=True)
    yield write_labels
