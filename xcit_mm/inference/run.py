"""Runs a model on images and videos, one image at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine.config import Config
from rich.progress import Progress

from ..engine import LoadWatch
from ..errors import is_out_of_memory
from ..files import write_atomically
from .inputs import Source, is_video, read_image, result_names
from .journal import open_journal
from .predictions import detections, results_path, write_detections, write_labels
from .videos import open_video, video_writer


def build_inferencer(
    cfg: Config,
    task: str,
    checkpoint: str | None,
    device: str | None,
    allow_partial: bool = False,
) -> Any:
    """Mmdet's or mmseg's own inferencer.

    Args:
        cfg (Config): The config.
        task (str): ``mmdet`` or ``mmseg``.
        checkpoint (str, optional): Where the weights are; None for random ones, which are partial.
        device (str, optional): Where it runs; None for CUDA if there is one.
        allow_partial (bool): Whether to use a checkpoint that leaves parameters unset. Defaults to
            False.
    """
    if task == 'mmdet':
        from mmdet.apis import DetInferencer as Inferencer
    else:
        from mmseg.apis import MMSegInferencer as Inferencer

    class CompleteInferencer(Inferencer):
        def _load_weights_to_model(self, model: Any, *args: Any) -> None:
            watch = None if allow_partial else LoadWatch(model)
            super()._load_weights_to_model(model, *args)
            if watch is not None:
                watch.check()

    inferencer = CompleteInferencer(cfg, checkpoint, device=device)
    inferencer.show_progress = False
    return inferencer


def predict(inferencer: Any, task: str, image: np.ndarray) -> Any:
    """The predictions for one image, a data sample.

    Args:
        inferencer: What :func:`build_inferencer` returned.
        task (str): ``mmdet`` or ``mmseg``.
        image (np.ndarray): BGR.
    """
    if task == 'mmdet':
        options = dict(return_datasamples=True, no_save_vis=True, out_dir='')
        (sample,) = inferencer(image, **options)['predictions']
        return sample
    sample = inferencer(image, return_datasamples=True)
    return sample[0] if isinstance(sample, list) else sample


def infer(
    inferencer: Any,
    task: str,
    sources: Sequence[Source],
    out_dir: Path,
    score_thr: float | None,
    job: str = '',
) -> dict[Source, str]:
    """Write predictions image by image, so that memory does not grow with the number of images.

    If it is interrupted, the same call continues with the next image.

    Args:
        inferencer: What :func:`build_inferencer` returned.
        task (str): ``mmdet`` or ``mmseg``.
        sources (Sequence[Source]): Images, videos and cameras.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        job (str): Identifies these sources, weights and settings. Defaults to ''.

    Returns:
        dict[Source, str]: What was skipped, with the reason.
    """
    model = Predictor(inferencer, task, out_dir, score_thr)
    names, skipped = result_names(sources), {}
    with open_journal(out_dir, job) as journal, Progress() as progress:
        left = [source for source in sources if str(source) not in journal.done]
        try:
            for source in progress.track(left, description='inputs'):
                try:
                    if isinstance(source, Path) and not is_video(source):
                        record = model.run_on_image(source, names[source])
                    else:
                        record = model.run_on_video(source, names[source], progress)
                except Skipped as reason:
                    skipped[source] = str(reason)
                else:
                    journal.add({'file': str(source), **record})
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'{len(journal.done)} of {len(sources)} inputs are done; the same command '
                'continues with the others.'
            ) from None
        if task == 'mmdet' and not all(map(is_video, sources)):
            classes = inferencer.visualizer.dataset_meta['classes']
            write_detections(results_path(task, out_dir), classes, journal)
    return skipped


class Skipped(Exception):
    """An input that cannot be used; says why."""


@dataclass
class Predictor:
    """Predicts and draws; the arguments are those of :func:`infer`."""

    inferencer: Any
    task: str
    out_dir: Path
    score_thr: float | None

    def run_on_image(self, path: Path, name: str) -> dict[str, Any]:
        """Write a picture, and labels for a segmentor; returns detections for a detector."""
        image = read_image(path)
        if image is None:
            raise Skipped('cannot be read')
        sample = self._predict(image)
        if self.score_thr is not None:
            picture = cv2.imencode('.png', self._draw(image, sample))[1].tobytes()
            write_atomically(self.out_dir / 'vis' / f'{name}.png', picture)
        if self.task == 'mmdet':
            return detections(sample)
        classes = len(self.inferencer.visualizer.dataset_meta['classes'])
        path = results_path(self.task, self.out_dir) / f'{name}.png'
        write_labels(path, sample, classes)
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
                    write(self._draw(frame, self._predict(frame)))
            except KeyboardInterrupt:
                if not isinstance(source, int):
                    raise
        return {}

    def _predict(self, image: np.ndarray) -> Any:
        try:
            return predict(self.inferencer, self.task, image)
        except (MemoryError, RuntimeError, ValueError, cv2.error) as error:
            size = f'{image.shape[1]}x{image.shape[0]} pixels'
            if is_out_of_memory(error):
                raise Skipped(f'not enough memory for {size}') from error
            if isinstance(error, RuntimeError):
                raise
            # Too small for the network, or too thin to be resized.
            raise Skipped(f'{size}: {" ".join(str(error).split())}') from error

    def _draw(self, image: np.ndarray, sample: Any) -> np.ndarray:
        visualizer = self.inferencer.visualizer
        is_detector = self.task == 'mmdet'
        options = dict(pred_score_thr=self.score_thr) if is_detector else dict(with_labels=False)
        visualizer.add_datasample('', mmcv.bgr2rgb(image), sample, draw_gt=False, **options)
        return mmcv.rgb2bgr(visualizer.get_image())
