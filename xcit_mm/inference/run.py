"""Runs a model on images and videos, one image at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rich.progress import Progress

from xcit_mm_deploy import Detections, ImageError, coco
from xcit_mm_deploy.inputs import Source, is_video, read_image, result_names

from ..errors import is_out_of_memory
from ..files import write_atomically
from .ids import AnnotationFile, Ids, own_ids
from .journal import open_journal
from .predictions import results_path, write_detections, write_labels
from .predictors import Predictor, Result
from .videos import open_video, video_writer


def infer(
    predictor: Predictor,
    sources: Sequence[Source],
    out_dir: Path,
    score_thr: float | None,
    job: str = '',
    annotations: AnnotationFile | None = None,
) -> dict[Source, str]:
    """Write predictions image by image, so that memory does not grow with the number of images.

    If it is interrupted, the same call continues with the next image.

    Args:
        predictor (Predictor): The model.
        sources (Sequence[Source]): Images, videos and cameras.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        job (str): Identifies these sources, weights and settings. Defaults to ''.
        annotations (AnnotationFile, optional): Gives the ids in a detector's predictions. Defaults
            to None, for our own.

    Returns:
        dict[Source, str]: What was skipped, with the reason.
    """
    if annotations is None:
        ids = own_ids(sources, predictor.classes, predictor.category_ids)
    else:
        ids = annotations.ids(sources, predictor.classes)
    work = Work(predictor, out_dir, score_thr, ids)
    names, skipped = result_names(sources), {}
    with open_journal(out_dir, job) as journal, Progress() as progress:
        left = [source for source in sources if str(source) not in journal.done]
        try:
            for source in progress.track(left, description='inputs'):
                try:
                    if isinstance(source, Path) and not is_video(source):
                        record = work.run_on_image(source, names[source])
                    else:
                        record = work.run_on_video(source, names[source], progress)
                except Skipped as reason:
                    skipped[source] = str(reason)
                else:
                    journal.add({'file': str(source), **record})
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'{len(journal.done)} of {len(sources)} inputs are done; the same command '
                'continues with the others.'
            ) from None
        if predictor.task == 'detection' and not all(map(is_video, sources)):
            write_detections(results_path(predictor.task, out_dir), ids, journal)
    return skipped


class Skipped(Exception):
    """An input that cannot be used; says why."""


@dataclass
class Work:
    """Predicts, draws and writes; the arguments are those of :func:`infer`."""

    predictor: Predictor
    out_dir: Path
    score_thr: float | None
    ids: Ids

    def run_on_image(self, path: Path, name: str) -> dict[str, Any]:
        """Write a picture, and labels for a segmentor; returns detections for a detector."""
        if path not in self.ids.images:
            raise Skipped('not in the annotation file')
        try:
            image = read_image(path)
        except ImageError:
            raise Skipped('cannot be read') from None
        result = self._predict(image)
        if self.score_thr is not None:
            picture = cv2.imencode('.png', self._draw(image, result))[1].tobytes()
            write_atomically(self.out_dir / 'vis' / f'{name}.png', picture)
        if isinstance(result, Detections):
            entry = coco.image_entry(self.ids.images[path], path, image.shape)
            found = coco.annotations(result, entry['id'], self.ids.categories)
            return {'image': entry, 'annotations': found}
        write_labels(results_path(self.predictor.task, self.out_dir) / f'{name}.png', result.labels)
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
