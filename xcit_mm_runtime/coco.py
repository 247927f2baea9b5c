"""Reads annotations and writes detections in COCO's layout."""

import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from . import rle
from .files import replacing
from .results import Detections

OWN_IDS = (
    'Images are numbered from 1 in the order of the inputs, so these are not the ids of an '
    'annotation file. Categories have the ids of the data of the model, where known, else numbers '
    'from 1.'
)
# COCO's results format, which pycocotools reads: one file per kind, as masks have other areas.
RESULTS = {'bbox': 'results.bbox.json', 'segmentation': 'results.segm.json'}


def read_coco(path: str | Path) -> dict[str, Any]:
    """Read an annotation file in COCO's layout.

    Args:
        path (str or Path): The file.

    Returns:
        dict: ``images``, ``categories`` and ``annotations`` are lists of dicts, which may lack
        keys. Files of test images have no annotations: an empty list.

    Raises:
        ValueError: If it cannot be read, or has another layout; the message does not name it.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{type(error).__name__}: {error}') from None
    if not isinstance(content, dict):
        raise ValueError('not a dict of images, categories and annotations')
    content.setdefault('annotations', [])
    for part in ('images', 'categories', 'annotations'):
        entries = content.get(part)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f'{part} is not a list of entries')
        for entry in entries:
            ids = [entry[key] for key in ('id', 'image_id', 'category_id') if key in entry]
            if not all(isinstance(value, (int, str)) for value in ids):
                raise ValueError(f'an id of {part} is neither a number nor text: {ids}')
    return content


def categories(classes: Sequence[str], ids: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return COCO's entry of each class.

    Args:
        classes (Sequence[str]): Their names.
        ids (Sequence[int], optional): Their ids; None for numbers from 1.
    """
    numbers = ids or range(1, len(classes) + 1)
    return [{'id': i, 'name': name} for i, name in zip(numbers, classes, strict=True)]


def record(
    found: Detections,
    image_id: int,
    path: str | Path,
    shape: tuple[int, ...],
    kinds: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return COCO's entry of an image, and the annotations, with scores, of what was found in it.

    Args:
        found (Detections): The predictions.
        image_id (int): The id of the image.
        path (str or Path): Its file.
        shape (tuple[int]): Its height and width.
        kinds (Sequence[Mapping]): COCO's entry of each class.

    Returns:
        dict: ``image`` and ``annotations``.
    """
    annotations = []
    for i, (x1, y1, x2, y2) in enumerate(found.boxes.tolist()):
        entry: dict[str, Any] = {
            'image_id': image_id,
            'category_id': kinds[found.labels[i]]['id'],
            'bbox': [x1, y1, x2 - x1, y2 - y1],
        }
        if found.scores is not None:
            entry['score'] = float(found.scores[i])
        if found.masks is not None:
            entry['segmentation'] = rle.encode(found.masks[i])
        annotations.append(entry)
    image = {'id': image_id, 'file_name': str(path), 'height': shape[0], 'width': shape[1]}
    return {'image': image, 'annotations': annotations}


def write_predictions(
    path: Path,
    description: str,
    kinds: Sequence[Mapping[str, Any]],
    records: Iterable[Mapping[str, Any]],
    with_results: bool = False,
) -> None:
    """Write predictions image by image, so that memory does not grow with their number.

    Args:
        path (Path): The file.
        description (str): What the ids are.
        kinds (Sequence[Mapping]): COCO's entry of each class.
        records (Iterable[Mapping]): A :func:`record` of each image; annotations are numbered here.
        with_results (bool): Whether to write the files of :data:`RESULTS`, too, next to it: those
            for which something was found. Defaults to False.
    """
    for name in RESULTS.values():
        path.with_name(name).unlink(missing_ok=True)
    with (
        replacing(path) as unfinished,
        unfinished.open('w', encoding='utf-8') as file,
        # COCO's layout has the images in a list of their own.
        tempfile.TemporaryFile('w+') as images,
        _ResultFiles(path.parent) as results,
    ):
        head = {'info': {'description': description}, 'categories': list(kinds)}
        file.write(json.dumps(head)[:-1] + ',\n"annotations": ')
        number = 0
        with _json_list(file) as add, _json_list(images) as add_image:
            for record in records:
                add_image(record['image'])
                for annotation in record['annotations']:
                    number += 1
                    add({'id': number, **annotation})
                    if with_results:
                        results.add(annotation)
        file.write(',\n"images": ')
        images.seek(0)
        shutil.copyfileobj(images, file)
        file.write('}\n')


class _ResultFiles(contextlib.ExitStack):
    """Writes the files of :data:`RESULTS`, each from the first annotation on that has its kind."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.lists: dict[str, Callable[[Mapping[str, Any]], Any]] = {}

    def add(self, annotation: Mapping[str, Any]) -> None:
        for kind in RESULTS.keys() & annotation.keys():
            if kind not in self.lists:
                unfinished = self.enter_context(replacing(self.folder / RESULTS[kind]))
                file = self.enter_context(unfinished.open('w', encoding='utf-8'))
                self.lists[kind] = self.enter_context(_json_list(file))
            others = RESULTS.keys() - {kind}
            self.lists[kind]({k: v for k, v in annotation.items() if k not in others})


@contextlib.contextmanager
def _json_list(file: IO[str]) -> Iterator[Callable[[Mapping[str, Any]], Any]]:
    """Write a list, one item per line; yields a function that adds an item to it."""
    separators = itertools.chain(['\n'], itertools.repeat(',\n'))
    file.write('[')
    yield lambda item: file.write(next(separators) + json.dumps(item))
    file.write('\n]')
