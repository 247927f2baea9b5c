"""Reads annotations and writes detections in COCO's layout."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from . import rle
from .results import Detections

OWN_IDS = (
    'Images are numbered from 1 in the order of the inputs, so these are not the ids of an '
    'annotation file. Categories have the ids of the data of the model, where known, else numbers '
    'from 1.'
)


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
    """COCO's entry of each class.

    Args:
        classes (Sequence[str]): Their names.
        ids (Sequence[int], optional): Their ids; None for numbers from 1.
    """
    numbers = ids or range(1, len(classes) + 1)
    return [{'id': i, 'name': name} for i, name in zip(numbers, classes, strict=True)]


def image_entry(number: int, path: str | Path, shape: tuple[int, ...]) -> dict[str, Any]:
    """COCO's entry of an image.

    Args:
        number (int): Its id.
        path (str or Path): The file.
        shape (tuple[int]): Its height and width.
    """
    return {'id': number, 'file_name': str(path), 'height': shape[0], 'width': shape[1]}


def annotations(
    found: Detections, image_id: int, kinds: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """COCO's annotations, with scores, of what was found in one image.

    Args:
        found (Detections): The predictions.
        image_id (int): The image.
        kinds (Sequence[Mapping]): COCO's entry of each class.
    """
    entries = []
    for i, (x1, y1, x2, y2) in enumerate(found.boxes.tolist()):
        entry: dict[str, Any] = {
            'image_id': image_id,
            'category_id': kinds[found.labels[i]]['id'],
            'bbox': [x1, y1, x2 - x1, y2 - y1],
            'score': float(found.scores[i]),
        }
        if found.masks is not None:
            entry['segmentation'] = rle.encode(found.masks[i])
        entries.append(entry)
    return entries


def write_predictions(
    file: IO[str],
    description: str,
    kinds: Sequence[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    images: Iterable[Mapping[str, Any]],
) -> None:
    """Write predictions entry by entry, so that memory does not grow with their number.

    Args:
        file (IO): Where to.
        description (str): What the ids are.
        kinds (Sequence[Mapping]): COCO's entry of each class.
        found (Iterable[Mapping]): The annotations, which are numbered here.
        images (Iterable[Mapping]): The images.
    """
    head = {'info': {'description': description}, 'categories': list(kinds)}
    file.write(json.dumps(head)[:-1] + ',\n"annotations": [')
    write_items(file, ({'id': i + 1, **entry} for i, entry in enumerate(found)))
    file.write('\n],\n"images": [')
    write_items(file, images)
    file.write('\n]}\n')


def write_items(file: IO[str], items: Iterable[Mapping[str, Any]]) -> None:
    """Write what is between the brackets of a list.

    Args:
        file (IO): Where to.
        items (Iterable[Mapping]): The entries.
    """
    for i, item in enumerate(items):
        file.write((',\n' if i else '\n') + json.dumps(item))
