"""Writes predictions: detections to one file in COCO's layout, labels to one PNG per image."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

from xcit_mm_runtime.coco import write_items, write_predictions
from xcit_mm_runtime.files import replacing

from .shards import Records

# COCO's results format, which pycocotools reads: one file per kind, as masks have other areas.
RESULTS = {'bbox': 'results.bbox.json', 'segmentation': 'results.segm.json'}


def results_path(task: str, out_dir: Path) -> Path:
    """Where predictions go: a file of detections, or a folder of label PNGs."""
    return out_dir / ('predictions.json' if task == 'detection' else 'labels')


def write_detections(path: Path, records: Records) -> None:
    """Write a detector's predictions in COCO's layout, one image at a time.

    If the ids are those of an annotation file, the files of :data:`RESULTS` are written next to it.

    Args:
        path (Path): The file.
        records (Records): Contains the image and the annotations of each input.
    """
    job = records.job
    with replacing(path) as unfinished, unfinished.open('w') as file:
        images = (record['image'] for record in _detected(records))
        found = _annotations(records, f'writing {path.name}')
        write_predictions(file, job.meaning, job.categories, found, images)
    for kind, name in RESULTS.items():
        path.with_name(name).unlink(missing_ok=True)
        if not job.annotated or not any(kind in a for a in _annotations(records)):
            continue
        others = RESULTS.keys() - {kind}
        with replacing(path.with_name(name)) as unfinished, unfinished.open('w') as file:
            file.write('[')
            found = _annotations(records, f'writing {name}')
            write_items(file, (_without(a, others) for a in found))
            file.write('\n]\n')


def _without(item: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _annotations(records: Records, shown: str | None = None) -> Iterator[dict[str, Any]]:
    """The annotations of all images, with a progress bar if there is something to show."""
    detected = _detected(records)
    if shown:
        detected = track(detected, shown, records.job.images, transient=True)
    return (entry for record in detected for entry in record['annotations'])


def _detected(records: Records) -> Iterable[dict[str, Any]]:
    return (record for record in records if 'annotations' in record)  # videos have none
