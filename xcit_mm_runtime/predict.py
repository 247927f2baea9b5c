"""From an image file to its results: reads it, predicts, draws and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import coco
from .errors import ImageError
from .files import write_png
from .inputs import read_image
from .results import Detections, Segmentation

Result = Detections | Segmentation


class Predictor(Protocol):
    """A detector or a segmentor, whatever runs it.

    Args:
        task (str): ``detection`` or ``segmentation``.
        classes (Sequence[str]): Names of its classes.
        category_ids (Sequence[int], optional): Their ids in the data it was trained on, if known.
        bit_depth (int, optional): How many bits the values of 16-bit images have, if known.
    """

    @property
    def task(self) -> str: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def category_ids(self) -> Sequence[int] | None: ...
    @property
    def bit_depth(self) -> int | None: ...

    def __call__(self, image: np.ndarray) -> Result:
        """Predict for one image, BGR; raise ImageError or MemoryError if that is impossible."""


class Skipped(Exception):
    """An input that cannot be used; says why."""


def results_path(task: str, out_dir: Path) -> Path:
    """Return where predictions go: a file of detections, or a folder of label PNGs."""
    return out_dir / ('predictions.json' if task == 'detection' else 'labels')


@dataclass
class FilePredictor:
    """Predicts for image files and writes pictures and labels.

    Args:
        predictor (Predictor): The model.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        categories (Sequence[Mapping]): COCO's entry of each class.
    """

    predictor: Predictor
    out_dir: Path
    score_thr: float | None
    categories: Sequence[Mapping[str, Any]]

    def __call__(self, path: str | Path, name: str, image_id: int) -> dict[str, Any]:
        """Write a picture, and labels for a segmentor.

        Args:
            path (str or Path): The image.
            name (str): Name of its results, without an ending.
            image_id (int): Its id in a detector's predictions.

        Returns:
            dict: The :func:`.coco.record` for a detector, else nothing.

        Raises:
            Skipped: If the image cannot be used.
        """
        try:
            image = read_image(path, self.predictor.bit_depth)
        except ImageError:
            raise Skipped('cannot be read') from None
        return self.write(image, self.predict(image), path, name, image_id)

    def write(
        self, image: np.ndarray, result: Result, path: str | Path, name: str, image_id: int
    ) -> dict[str, Any]:
        """Write what was predicted for an image; see a call."""
        if self.score_thr is not None:
            write_png(self.out_dir / 'vis' / f'{name}.png', self.draw(image, result))
        if isinstance(result, Detections):
            return coco.record(result, image_id, path, image.shape, self.categories)
        write_png(results_path(self.predictor.task, self.out_dir) / f'{name}.png', result.labels)
        return {}

    def predict(self, image: np.ndarray) -> Result:
        """Predict for one image, BGR; raise :class:`Skipped` if that is impossible."""
        size = f'{image.shape[1]}x{image.shape[0]} pixels'
        try:
            return self.predictor(image)
        except MemoryError as error:
            raise Skipped(f'not enough memory for {size}') from error
        except ImageError as error:
            raise Skipped(f'{size}: {error}') from error

    def draw(self, image: np.ndarray, result: Result, is_frame: bool = False) -> np.ndarray:
        """Draw predictions; frames of a video all have the same size."""
        if isinstance(result, Detections):
            return result.draw(image, self.score_thr or 0.0)
        return result.draw(image, fixed_size=is_frame)
