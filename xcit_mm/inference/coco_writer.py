"""Predictions of a detector in COCO's layout, written image by image."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..files import replacing


@contextmanager
def coco_writer(path: Path, classes: Iterable[str]) -> Iterator['CocoWriter']:
    """A writer for a file that gets its name only when it is complete.

    Args:
        path (Path): The file.
        classes (Iterable[str]): Names of the classes.
    """
    # The list of images goes after the annotations; until then, it is in a temporary file.
    with (
        replacing(path) as unfinished,
        unfinished.open('w', encoding='utf-8') as file,
        tempfile.TemporaryFile('w+', encoding='utf-8', dir=path.parent) as images,
    ):
        writer = CocoWriter(file, images, classes)
        yield writer
        writer.finish()


class CocoWriter:
    """Writes detections in COCO's layout, one image at a time, so that memory does not grow.

    Args:
        file (IO): The output.
        images (IO): Where the list of images waits until the annotations are complete.
        classes (Iterable[str]): Names of the classes.
    """

    def __init__(self, file: IO[str], images: IO[str], classes: Iterable[str]) -> None:
        self.file, self.images = file, images
        self.image_count = self.count = 0
        categories = [{'id': i, 'name': name} for i, name in enumerate(classes)]
        self.file.write(f'{{"categories": {json.dumps(categories)},\n"annotations": [')

    def add(self, path: Path, sample: Any) -> None:
        """Add the predictions of one image."""
        image_id = self.image_count
        height, width = sample.ori_shape[:2]
        image = {'id': image_id, 'file_name': str(path), 'height': height, 'width': width}
        self.images.write((',\n' if self.image_count else '\n') + json.dumps(image))
        self.image_count += 1
        for annotation in detections(sample.pred_instances, image_id):
            self.file.write((',\n' if self.count else '\n') + json.dumps(annotation))
            self.count += 1

    def finish(self) -> None:
        """Write what goes after the annotations."""
        self.file.write('\n],\n"images": [')
        self.images.seek(0)
        shutil.copyfileobj(self.images, self.file)
        self.file.write('\n]}\n')


def detections(instances: Any, image_id: int) -> Iterator[dict[str, Any]]:
    """Predictions of an image as COCO annotations with scores."""
    from mmdet.structures.mask import encode_mask_results

    boxes = instances.bboxes.cpu().numpy()
    masks = encode_mask_results(instances.masks.cpu().numpy()) if 'masks' in instances else None
    for i, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        annotation = {
            'image_id': image_id,
            'category_id': int(instances.labels[i]),
            'bbox': [x1, y1, x2 - x1, y2 - y1],
            'score': float(instances.scores[i]),
        }
        if masks is not None:
            counts = masks[i]['counts']
            counts = counts.decode() if isinstance(counts, bytes) else counts
            annotation['segmentation'] = {'size': list(masks[i]['size']), 'counts': counts}
        yield annotation
