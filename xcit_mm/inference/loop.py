"""Runs a model on images and videos, one after another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcit_mm_runtime import coco
from xcit_mm_runtime.inputs import MediaSource, ResultNames, is_video
from xcit_mm_runtime.predict import FilePredictor, Predictor, Skipped, results_path
from xcit_mm_runtime.progress import track

from .ids import AnnotationFile, Ids, own_ids
from .processes import ALONE, Process
from .progress import InferenceProgress
from .shards import EVERYTHING, InferenceJob, Records, delete_shards, open_journal
from .videos import draw_video


def infer(
    predictor: Predictor,
    sources: Sequence[MediaSource],
    out_dir: Path,
    score_thr: float | None,
    key: str = '',
    annotations: AnnotationFile | None = None,
    process: Process = ALONE,
    retry: bool = False,
) -> Records:
    """Write predictions image by image, so that memory does not grow with the number of images.

    If it is interrupted, the same call continues with the next image. A process that has everything
    to do writes a detector's predictions to one file at the end; several leave that to
    :func:`merge`.

    Args:
        predictor (Predictor): The model.
        sources (Sequence[MediaSource]): Images, videos and cameras.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        key (str): Identifies these sources, weights and settings. Defaults to ''.
        annotations (AnnotationFile, optional): Gives the ids in a detector's predictions. Defaults
            to None, for our own.
        process (Process): Says which of the inputs to use. Defaults to all of them.
        retry (bool): Whether to try again what was skipped before an interruption. Defaults to
            False.

    Returns:
        Records: What was found in this process's share, and what was skipped.
    """
    job, ids = describe_job(predictor, sources, key, annotations, process.shard.count)
    predict = FilePredictor(predictor, out_dir, score_thr, ids.categories)
    names = ResultNames(sources)
    is_alone = process.shard == EVERYTHING
    title = 'inputs' if is_alone else f'shard {process.shard}'
    with open_journal(out_dir, job, process.shard, retry) as journal:
        counts = (journal.count_left(), len(journal.skipped))
        try:
            with InferenceProgress(title, *counts, process.local_rank == 0) as progress:
                for number in journal.left():
                    source, image_id = sources[number], ids.images[number]
                    try:
                        record = _run(predict, source, names[number], image_id, progress)
                    except Skipped as reason:
                        journal.skip(number, str(source), str(reason))
                    else:
                        journal.add(number, record)
                    progress.advance(len(journal.skipped))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'{len(journal.share) - journal.count_left()} of {len(journal.share)} inputs are '
                'done; the same command continues with the others.'
            ) from None
    if is_alone:
        merge(journal, out_dir)
        delete_shards(out_dir)
    return journal


def describe_job(
    predictor: Predictor,
    sources: Sequence[MediaSource],
    key: str,
    annotations: AnnotationFile | None,
    shares: int = 1,
) -> tuple[InferenceJob, Ids]:
    """Return what an inference is, and the ids of its images; see :func:`infer`."""
    if annotations is None:
        ids = own_ids(sources, predictor.classes, predictor.category_ids)
    else:
        ids = annotations.ids(sources, predictor.classes)
    images = sum(not is_video(source) for source in sources)
    found = (ids.categories, ids.meaning, ids.annotated)
    return InferenceJob(key, predictor.task, len(sources), images, *found, shares), ids


def _run(
    predict: FilePredictor,
    source: MediaSource,
    name: str,
    image_id: int | None,
    progress: InferenceProgress,
) -> dict[str, Any]:
    """Write the results of one input; return what a detector found in an image."""
    if isinstance(source, int) or is_video(source):
        draw_video(predict, source, name, progress.bar)
        return {}
    if image_id is None:
        raise Skipped('not in the annotation file')
    return predict(source, name, image_id)


def merge(records: Records, out_dir: Path) -> None:
    """Write what all processes have found to one file; label PNGs need no merging.

    Args:
        records (Records): What was found.
        out_dir (Path): The folder for results.
    """
    job = records.job
    if job.has_detections:
        path = results_path(job.task, out_dir)
        detected = (record for record in records if 'annotations' in record)  # videos have none
        shown = track(detected, f'writing {path.name}', job.images)
        coco.write_predictions(path, job.meaning, job.categories, shown, job.annotated)
