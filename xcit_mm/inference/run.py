"""Runs a model on images, one at a time."""

from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from mmengine.config import Config
from rich.progress import track

from ..errors import is_out_of_memory
from .inputs import read_image, result_names
from .predictions import prediction_writer


def build_inferencer(cfg: Config, task: str, checkpoint: str, device: str | None) -> Any:
    """Mmdet's or mmseg's own inferencer."""
    if task == 'mmdet':
        from mmdet.apis import DetInferencer

        return DetInferencer(cfg, checkpoint, device, show_progress=False)
    from mmseg.apis import MMSegInferencer

    inferencer = MMSegInferencer(cfg, checkpoint, device=device)
    inferencer.show_progress = False
    return inferencer


def infer(
    inferencer: Any, task: str, images: list[Path], out_dir: Path, score_thr: float | None
) -> dict[Path, str]:
    """Write predictions image by image, so that memory does not grow with the number of images.

    Args:
        inferencer: What :func:`build_inferencer` returned.
        task (str): ``mmdet`` or ``mmseg``.
        images (list[Path]): The images.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.

    Returns:
        dict[Path, str]: Images that were skipped, with the reason.
    """
    names = result_names(images)
    skipped: dict[Path, str] = {}
    with prediction_writer(inferencer, task, out_dir, names) as write:
        for path in track(images, description='images'):
            image = read_image(path)
            if image is None:
                skipped[path] = 'cannot be read'
                continue
            try:
                (sample,) = _predict(inferencer, task, image)
                if score_thr is not None:
                    picture = out_dir / 'vis' / f'{names[path]}.png'
                    _draw(inferencer.visualizer, task, image, sample, score_thr, picture)
                write(path, sample)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                skipped[path] = f'not enough memory for {image.shape[1]}x{image.shape[0]} pixels'
    return skipped


def _predict(inferencer: Any, task: str, image: np.ndarray) -> list[Any]:
    if task == 'mmdet':
        outputs = inferencer(image, return_datasamples=True, no_save_vis=True, out_dir='')
        return outputs['predictions']
    output = inferencer(image, return_datasamples=True)
    return output if isinstance(output, list) else [output]


def _draw(
    visualizer: Any,
    task: str,
    image: np.ndarray,
    sample: Any,
    score_thr: float,
    path: Path,
) -> None:
    options = {'pred_score_thr': score_thr} if task == 'mmdet' else {'with_labels': False}
    visualizer.add_datasample(
        path.stem,
        mmcv.bgr2rgb(image),
        data_sample=sample,
        draw_gt=False,
        show=False,
        out_file=str(path),
        **options,
    )
