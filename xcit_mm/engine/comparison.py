"""Pictures of a test: the ground truth next to the prediction, in one layout for all tasks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from xcit_mm_runtime.draw import side_by_side
from xcit_mm_runtime.files import write_png
from xcit_mm_runtime.inputs import read_image
from xcit_mm_runtime.results import Detections, Segmentation

from ..configs import bit_depth


@HOOKS.register_module()
class ComparisonHook(Hook):
    """Draws the ground truth and the prediction of each tested image side by side.

    Args:
        out_dir (str, optional): Folder for a PNG per image, in the folders of the images. Defaults
            to None, for no files.
        show (bool): Whether to show the pictures in a window. Defaults to False.
        wait_time (float): Seconds between windows. Defaults to 0, to wait for a key.
    """

    def __init__(
        self, out_dir: str | None = None, show: bool = False, wait_time: float = 0.0
    ) -> None:
        self.out_dir, self.show, self.wait_time = out_dir, show, wait_time
        self.bit_depth: int | None = None

    def before_test(self, runner: Runner) -> None:
        """Read from the config how images are read."""
        self.bit_depth = bit_depth(runner.cfg)

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        """Draw the images of a batch."""
        dataset = runner.test_loop.dataloader.dataset
        for sample in outputs or ():
            image = read_image(sample.img_path, self.bit_depth)
            picture = draw_comparison(image, sample.cpu(), dataset.metainfo)
            name = _relative_to_data(sample.img_path, getattr(dataset, 'data_prefix', {}))
            if self.out_dir:
                write_png(Path(self.out_dir) / name.with_suffix('.png'), picture)
            if self.show:
                rgb = np.ascontiguousarray(picture[..., ::-1])
                runner.visualizer.show(rgb, win_name=name.name, wait_time=self.wait_time)


def _relative_to_data(path: str, prefixes: dict[str, str]) -> Path:
    """Return a path relative to the folder of the images; its name if it is in none of them."""
    full = Path(os.path.abspath(path))
    for folder in map(os.path.abspath, prefixes.values()):
        if full.is_relative_to(folder):
            return full.relative_to(folder)
    return Path(full.name)


def draw_comparison(image: np.ndarray, sample: Any, metainfo: dict[str, Any]) -> np.ndarray:
    """Draw a sample's ground truth, if it has one, and its prediction, side by side.

    Args:
        image (np.ndarray): BGR, the image file.
        sample (DetDataSample or SegDataSample): On the CPU.
        metainfo (dict): Classes and palette of the dataset.
    """
    names = metainfo.get('classes') or (), metainfo.get('palette')
    pictures = {}
    for title, prefix in (('ground truth', 'gt'), ('prediction', 'pred')):
        if f'{prefix}_sem_seg' in sample:
            labels = sample.get(f'{prefix}_sem_seg').data.squeeze(0).numpy()
            if labels.shape != image.shape[:2]:
                size = image.shape[1::-1]
                labels = cv2.resize(labels.astype(np.int32), size, interpolation=cv2.INTER_NEAREST)
            pictures[title] = Segmentation(labels, *names).draw(image)
        elif f'{prefix}_instances' in sample:
            found = sample.get(f'{prefix}_instances')
            boxes = getattr(found.bboxes, 'tensor', found.bboxes).numpy()
            scores = found.scores.numpy() if 'scores' in found else None
            masks = found.get('masks')
            if masks is not None:
                masks = np.asarray(masks.to_ndarray() if hasattr(masks, 'to_ndarray') else masks)
                masks = masks.astype(bool)
            objects = Detections(boxes, scores, found.labels.numpy(), masks, *names)
            pictures[title] = objects.draw(image)
    return side_by_side(pictures)
