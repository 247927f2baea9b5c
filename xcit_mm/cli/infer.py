"""Run a detector or a segmentor on images."""

import argparse
import glob
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine.config import Config
from rich.progress import track

from ..errors import UserError, is_out_of_memory
from ..files import write_atomically
from .coco_writer import coco_writer
from .common import check_checkpoint, command, load_config, task_of

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')


def find_images(inputs: Iterable[str]) -> list[Path]:
    """Images named by files, folders (searched recursively) and globs, sorted, each once."""
    found: dict[Path, None] = {}
    for item in inputs:
        path = Path(item)
        if path.is_dir():
            files = [f for f in sorted(path.rglob('*')) if f.suffix.lower() in IMAGE_SUFFIXES]
        elif path.is_file():
            files = [path]
        else:
            files = [Path(f) for f in sorted(glob.glob(item, recursive=True))]
            files = [f for f in files if f.is_file()]
        if not files:
            raise UserError(
                f'{item} names no image. Give image files, folders with images, or globs.'
            )
        found.update(dict.fromkeys(files))
    return list(found)


def result_names(images: list[Path]) -> dict[Path, str]:
    """A name for the results of each image: its stem, with folders where stems repeat."""
    stems: dict[str, int] = {}
    for image in images:
        stems[image.stem] = stems.get(image.stem, 0) + 1
    names = {
        image: image.stem if stems[image.stem] == 1 else str(image).strip('./').replace(os.sep, '_')
        for image in images
    }
    return names


def read_image(path: Path) -> np.ndarray | None:
    """The image as BGR, or None if it cannot be read."""
    try:
        return mmcv.imread(str(path), channel_order='bgr')
    except Exception:  # a damaged file can raise anything
        return None


def build_inferencer(cfg: Config, task: str, checkpoint: str | None, device: str | None) -> Any:
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
                (sample,) = predict(inferencer, task, image)
                if score_thr is not None:
                    picture = out_dir / 'vis' / f'{names[path]}.png'
                    _draw(inferencer.visualizer, task, image, sample, score_thr, picture)
                write(path, sample)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                skipped[path] = f'not enough memory for {image.shape[1]}x{image.shape[0]} pixels'
    return skipped


@contextmanager
def prediction_writer(
    inferencer: Any, task: str, out_dir: Path, names: dict[Path, str]
) -> Iterator[Callable[[Path, Any], None]]:
    """A function that writes the predictions of one image.

    Args:
        inferencer: What :func:`build_inferencer` returned.
        task (str): ``mmdet`` or ``mmseg``.
        out_dir (Path): Folder for predictions.
        names (dict[Path, str]): What :func:`result_names` returned.
    """
    results = results_path(task, out_dir)
    if task == 'mmdet':
        with coco_writer(results, inferencer.visualizer.dataset_meta['classes']) as writer:
            yield writer.add
        return

    def write_labels(path: Path, sample: Any) -> None:
        labels = sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8)
        content = cv2.imencode('.png', labels)[1].tobytes()
        write_atomically(results / f'{names[path]}.png', content)

    results.mkdir(exist_ok=True)
    yield write_labels


def results_path(task: str, out_dir: Path) -> Path:
    """Where predictions go: a file of detections, or a folder of label PNGs."""
    return out_dir / ('predictions.json' if task == 'mmdet' else 'labels')


def predict(inferencer: Any, task: str, image: np.ndarray) -> list[Any]:
    """The predictions for one image."""
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


@command('infer')
def main(args: argparse.Namespace) -> int:
    images = find_images(args.inputs)
    cfg = load_config(args.config)
    task = task_of(cfg)
    check_checkpoint(args.checkpoint)
    out_dir = Path(args.out_dir)
    results = results_path(task, out_dir)
    if results.exists() and not args.force:
        raise UserError(
            f'{results} already exists; --force overwrites it, --out-dir writes elsewhere.'
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    inferencer = build_inferencer(cfg, task, args.checkpoint, args.device)
    skipped = infer(inferencer, task, images, out_dir, None if args.no_vis else args.score_thr)
    for path, reason in skipped.items():
        print(f'skipped, {reason}: {path}')
    print(f'{len(images) - len(skipped)} of {len(images)} images; predictions: {results}')
    if not args.no_vis:
        print(f'pictures: {out_dir / "vis"}')
    return 1 if skipped else 0
