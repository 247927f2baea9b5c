"""Runs a model on images and videos, one image at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from rich.progress import Progress

from xcit_mm_runtime import Detections, ImageError, coco
from xcit_mm_runtime.files import write_png
from xcit_mm_runtime.inputs import ResultNames, Source, is_video, read_image

from ..errors import is_out_of_memory
from .ids import AnnotationFile, Ids, own_ids
from .predictions import results_path, write_detections
from .predictors import Predictor, Result
from .processes import ALONE, Process
from .progress import Display
from .shards import EVERYTHING, Job, Journal, Records, delete_shards, open_journal
from .videos import open_video, video_writer


class Outcome(NamedTuple):
    """What an inference did.

    Args:
        job (Job): All of the work.
        share (int): How many inputs this process had to do.
        skipped (list[tuple[str, str]]): Those of them that could not be used, with the reason.
    """

    job: Job
    share: int
    skipped: list[tuple[str, str]]


def infer(
    predictor: Predictor,
    sources: Sequence[Source],
    out_dir: Path,
    score_thr: float | None,
    key: str = '',
    annotations: AnnotationFile | None = None,
    process: Process = ALONE,
    retry: bool = False,
) -> Outcome:
    """Write predictions image by image, so that memory does not grow with the number of images.

    If it is interrupted, the same call continues with the next image. A process that has everything
    to do writes a detector's predictions to one file at the end; several leave that to
    :func:`merge`.

    Args:
        predictor (Predictor): The model.
        sources (Sequence[Source]): Images, videos and cameras.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        key (str): Identifies these sources, weights and settings. Defaults to ''.
        annotations (AnnotationFile, optional): Gives the ids in a detector's predictions. Defaults
            to None, for our own.
        process (Process): Says which of the inputs to use. Defaults to all of them.
        retry (bool): Whether to try again what was skipped before an interruption. Defaults to
            False.
    """
    if annotations is None:
        ids = own_ids(sources, predictor.classes, predictor.category_ids)
    else:
        ids = annotations.ids(sources, predictor.classes)
    images = sum(not is_video(source) for source in sources)
    settings = (ids.categories, ids.meaning, ids.annotated)
    job = Job(key, predictor.task, len(sources), images, *settings)
    work = Work(predictor, out_dir, score_thr, ids)
    with open_journal(out_dir, job, process.shard, retry) as journal:
        share = journal.count()
        try:
            work.run(sources, journal, process)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'{share - journal.count_left()} of {share} inputs are done; the same command '
                'continues with the others.'
            ) from None
    if process.shard == EVERYTHING:
        merge(Records(out_dir), out_dir)
        delete_shards(out_dir)
    return Outcome(job, share, [journal.skipped[number] for number in sorted(journal.skipped)])


def merge(records: Records, out_dir: Path) -> None:
    """Write what all processes have found to one file; label PNGs need no merging.

    Args:
        records (Records): What was found.
        out_dir (Path): The folder for results.
    """
    if records.job.has_detections:
        write_detections(results_path(records.job.task, out_dir), records)


class Skipped(Exception):
    """An input that cannot be used; says why."""


@dataclass
class Work:
    """Predicts, draws and writes; the arguments are those of :func:`infer`."""

    predictor: Predictor
    out_dir: Path
    score_thr: float | None
    ids: Ids

    def run(self, sources: Sequence[Source], journal: Journal, process: Process) -> None:
        """Do what is left of one process's share."""
        names = ResultNames(sources)
        title = 'inputs' if process.shard == EVERYTHING else f'shard {process.shard}'
        left, skipped = journal.count_left(), len(journal.skipped)
        with Display(title, left, skipped, process.local_rank == 0) as display:
            for number in journal.left():
                source = sources[number]
                try:
                    if isinstance(source, int) or is_video(source):
                        record = self.run_on_video(source, names[number], display)
                    else:
                        record = self.run_on_image(source, names[number], self.ids.images[number])
                except Skipped as reason:
                    journal.skip(number, str(source), str(reason))
                else:
                    journal.add(number, record)
                display.advance_inputs(len(journal.skipped))

    def run_on_image(self, path: str, name: str, number: int | None) -> dict[str, Any]:
        """Write a picture, and labels for a segmentor; returns detections for a detector."""
        if number is None:
            raise Skipped('not in the annotation file')
        try:
            image = read_image(path, self.predictor.bit_depth)
        except ImageError:
            raise Skipped('cannot be read') from None
        result = self._predict(image)
        if self.score_thr is not None:
            write_png(self.out_dir / 'vis' / f'{name}.png', self._draw(image, result))
        if isinstance(result, Detections):
            entry = coco.image_entry(number, path, image.shape)
            found = coco.annotations(result, number, self.ids.categories)
            return {'image': entry, 'annotations': found}
        write_png(results_path(self.predictor.task, self.out_dir) / f'{name}.png', result.labels)
        return {}

    def run_on_video(self, source: Source, name: str, progress: Progress) -> dict[str, Any]:
        """Write a video with predictions drawn; Ctrl-C ends the video of a camera."""
        video = open_video(source)
        if video is None:
            raise Skipped('cannot be read')
        frames = progress.track(video.frames, total=video.length, description=name)
        with video_writer(self.out_dir / 'vis' / f'{name}.mp4', video) as write:
            try:
                for frame in frames:
                    write(self._draw(frame, self._predict(frame), is_frame=True))
            except KeyboardInterrupt:
                if not isinstance(source, int):
                    raise
        return {}

    def _predict(self, image: np.ndarray) -> Result:
        try:
            return self.predictor(image)
        except (MemoryError, RuntimeError, ValueError, cv2.error) as error:
            size = f'{image.shape[1]}x{image.shape[0]} pixels'
            if is_out_of_memory(error):
                raise Skipped(f'not enough memory for {size}') from error
            if isinstance(error, RuntimeError):
                raise
            # Too small for the network, or too thin to be resized.
            raise Skipped(f'{size}: {" ".join(str(error).split())}') from error

    def _draw(self, image: np.ndarray, result: Result, is_frame: bool = False) -> np.ndarray:
        if isinstance(result, Detections):
            return result.draw(image, self.score_thr or 0.0)
        return result.draw(image, fixed_size=is_frame)
