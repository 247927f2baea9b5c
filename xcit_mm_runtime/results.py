"""Predictions for one image, in numpy arrays and in pixels of that image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Detections:
    """The objects in an image, best first.

    Args:
        boxes (np.ndarray): float32 (D, 4): x1 y1 x2 y2.
        scores (np.ndarray, optional): float32 (D,), 0...1; None for a ground truth.
        labels (np.ndarray): int64 (D,), indices of classes.
        masks (np.ndarray, optional): bool (D, H, W); None for models that predict only boxes.
        classes (Sequence[str]): Names of all classes of the model.
        palette (Sequence, optional): Their RGB colors.
    """

    boxes: np.ndarray
    scores: np.ndarray | None
    labels: np.ndarray
    masks: np.ndarray | None
    classes: Sequence[str]
    palette: Sequence[Sequence[int]] | None = None

    @property
    def names(self) -> list[str]:
        """The name of each object's class."""
        return [class_name(self.classes, int(label)) for label in self.labels]

    def draw(self, image: np.ndarray, score_thr: float = 0.3) -> np.ndarray:
        """Return a picture of them, as large as the image; see :func:`.draw.draw_detections`.

        Args:
            image (np.ndarray): BGR, the one that was predicted on.
            score_thr (float): Only what scores above this is drawn. Defaults to 0.3.
        """
        from .draw import draw_detections  # here: only pictures need Pillow

        return draw_detections(image, self, score_thr)


@dataclass
class Segmentation:
    """The class of each pixel of an image.

    Args:
        labels (np.ndarray): (H, W), indices of classes, of an unsigned type.
        classes (Sequence[str]): Names of all classes of the model.
        palette (Sequence, optional): Their RGB colors.
    """

    labels: np.ndarray
    classes: Sequence[str]
    palette: Sequence[Sequence[int]] | None = None

    def draw(self, image: np.ndarray, fixed_size: bool = False) -> np.ndarray:
        """Return a picture, with a strip of class names; see :func:`.draw.draw_segmentation`.

        Args:
            image (np.ndarray): BGR, the one that was predicted on.
            fixed_size (bool): Whether images of equal size give pictures of equal size. Defaults
                to False.
        """
        from .draw import draw_segmentation

        return draw_segmentation(image, self, fixed_size)


def label_type(classes: int) -> type[np.unsignedinteger]:
    """Return the smallest type for the labels of this many classes.

    Args:
        classes (int): How many.
    """
    return np.uint8 if classes <= 256 else np.uint16


def class_name(classes: Sequence[str], label: int) -> str:
    """Return the name of a class; a number if it has none.

    Args:
        classes (Sequence[str]): The names.
        label (int): Index of the class.
    """
    return str(classes[label]) if label < len(classes) else f'class {label}'
