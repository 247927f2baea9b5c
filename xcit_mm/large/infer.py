"""Runs a model on large images for the command: progress, file names, and unfinished work."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rich.progress import Progress, TaskID, TimeElapsedColumn

from xcit_mm_runtime import coco, rle
from xcit_mm_runtime.files import write_png
from xcit_mm_runtime.inputs import find_images
from xcit_mm_runtime.progress import progress_bar
from xcit_mm_runtime.results import Detections

from ..errors import UserError
from ..inference.ids import Ids
from .images import Scale, open_image
from .labels import read_preview, write_results
from .plan import format_bytes
from .segment import StepProgress, WholeSegmentation
from .sliding import detect_windows, segment_windows

UNFINISHED = 'unfinished'
# In the preview of a scene with more objects, masks are too small to see and would fill the memory.
PREVIEW_MASKS = 200


def find_large_images(inputs: Iterable[str]) -> list[Path]:
    """Find images by files, folders and globs; a zarr array is a folder that is one image."""
    found: dict[Path, None] = {}
    for item in inputs:
        path = Path(item)
        is_zarr = path.suffix.lower() == '.zarr' and path.is_dir()
        found.update(dict.fromkeys([path] if is_zarr else find_images([item])))
    return list(found)


def check_names(paths: list[Path]) -> None:
    """Raise if two images would have the same results."""
    stems = [path.stem for path in paths]
    for path in paths:
        if stems.count(path.stem) > 1:
            raise UserError(f'Several images are called {path.stem}: give them one at a time.')


def segment_large(
    model: Any,
    path: Path,
    out_dir: Path,
    *,
    memory: int | None,
    window: int | None,
    overlap: int,
    job: str,
    preview: bool,
    scale: Scale | None = None,
) -> Path:
    """Segment one image and return the TIFF with the labels.

    Args:
        model (EncoderDecoder): The segmentor, in eval mode.
        path (Path): The image.
        out_dir (Path): Folder for results.
        memory (int, optional): Bytes that the process may use.
        window (int, optional): Side of sliding windows; None for the whole image.
        overlap (int): What neighboring windows have in common.
        job (str): Identifies image, weights and settings.
        preview (bool): Whether to write a small picture.
        scale (callable, optional): As for :func:`.open_image`. Defaults to None.
    """
    image = open_image(path, scale)
    folder = out_dir / UNFINISHED / path.stem
    out = out_dir / 'labels' / f'{path.stem}.tif'
    picture = out_dir / 'vis' / f'{path.stem}.png' if preview else None
    with _progress() as report:
        if window is None:
            run = WholeSegmentation(model, folder, memory, job, report)
            plan = run.plan(image)
            limit = '' if memory is None else f' within {format_bytes(memory)}'
            print(f'{path}: {plan.describe()}{limit}', flush=True)
            run(image, out, picture, plan)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            labels = segment_windows(model, image, folder, window, overlap, report)
            write_results(labels, image, model, out, picture)
            shutil.rmtree(folder)
    if not any((out_dir / UNFINISHED).iterdir()):
        (out_dir / UNFINISHED).rmdir()
    return out


def detect_large(
    model: Any,
    paths: list[Path],
    out: Path,
    ids: Ids,
    window: int,
    overlap: int,
    score_thr: float | None,
    scale: Scale | None = None,
) -> None:
    """Detect in images by sliding windows, and write all objects to one file in COCO's layout.

    Args:
        model (BaseDetector): The detector, in eval mode.
        paths (list[Path]): The images.
        out (Path): The file.
        ids (Ids): The ids of the images and classes.
        window (int): Side of the windows.
        overlap (int): What neighboring windows have in common.
        score_thr (float, optional): Lowest score of the objects in the preview of each image; None
            for no previews.
        scale (callable, optional): As for :func:`.open_image`. Defaults to None.

    Raises:
        UserError: If there is an annotation file, and it lacks an image.
    """
    if lacking := [path for path, i in zip(paths, ids.images, strict=True) if i is None]:
        raise UserError(f'{lacking[0]} is not in the annotation file of --ann-file.')
    classes, palette = (model.dataset_meta[key] for key in ('classes', 'palette'))
    records = []
    with _progress() as report:
        for number, path in zip(cast(Sequence[int], ids.images), paths, strict=True):
            image = open_image(path, scale)
            found = detect_windows(model, image, window, overlap, report)
            result = Detections(found.boxes, found.scores, found.labels, None, classes, palette)
            record = coco.record(result, number, path, image.shape, ids.categories)
            for entry, mask in zip(record['annotations'], found.masks or (), strict=False):
                entry['segmentation'] = rle.encode_part(*mask, image.shape[:2])
            records.append(record)
            if score_thr is not None:
                picture, step = read_preview(image)
                small = found.above(score_thr)
                if len(small.scores) > PREVIEW_MASKS:
                    small.masks = None
                boxes, masks = small.rescale(picture.shape[:2], (step, step))
                shown = Detections(boxes, small.scores, small.labels, masks, classes, palette)
                write_png(out.parent / 'vis' / f'{path.stem}.png', shown.draw(picture, score_thr))
    coco.write_predictions(out, ids.meaning, ids.categories, records)


@contextmanager
def _progress() -> Iterator[StepProgress]:
    """Yield a function that shows a bar for each kind of step, with the time left."""
    tasks: dict[str, TaskID] = {}
    with progress_bar(*Progress.get_default_columns(), TimeElapsedColumn()) as progress:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show
