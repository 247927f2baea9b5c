"""Loads an exported model and runs it on images."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from .errors import ImageError, ModelError
from .inputs import read_image
from .masks import paste
from .preprocess import resize_image, to_planes
from .results import Detections, Segmentation, label_type

# The key of our metadata in the file, and the newest layout of it that this version reads.
METADATA, FORMAT = 'xcit_mm', 1
OUTPUTS = {
    'detection': ('boxes', 'scores', 'labels'),
    'segmentation': (),
    'features': ('level_0',),
}


def load(path: str | os.PathLike, threads: int = 0) -> 'Model':
    """Load a file that ``xcit-mm export`` wrote.

    Args:
        path (str or PathLike): An ONNX file.
        threads (int): How many processors to use. Defaults to 0, all of them.

    Raises:
        ModelError: If it cannot be run; says why.
    """
    path = Path(path)
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f'{path.name} needs ONNX Runtime, which cannot be imported ({error}): pip install '
            'onnxruntime'
        ) from None
    if not path.is_file():
        raise ModelError(f'There is no model {path.absolute()}.')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=['CPUExecutionProvider']
        )
    except Exception as error:  # ONNX Runtime raises classes without a common base
        raise ModelError(f'{path} is damaged or not an ONNX file: {_first_line(error)}') from None
    return Model(session, read_metadata(session.get_modelmeta().custom_metadata_map, path), path)


def read_metadata(properties: Mapping[str, str], path: Path) -> dict[str, Any]:
    """What the export wrote about a model.

    Args:
        properties (Mapping[str, str]): The metadata of the ONNX file.
        path (Path): The file, for error messages.
    """
    if METADATA not in properties:
        raise ModelError(
            f'{path} is an ONNX file that xcit-mm export did not write: it lacks the metadata '
            f'{METADATA!r}, which says how to prepare images.'
        )
    try:
        info = json.loads(properties[METADATA])
        number = int(info['format'])
    except (ValueError, KeyError, TypeError):
        raise ModelError(f'{path}: its metadata {METADATA!r} is damaged.') from None
    if number > FORMAT:
        raise ModelError(
            f'{path} was written by a newer version, in format {number}; this one reads up to '
            f'{FORMAT}. Update xcit_mm, or export the model again.'
        )
    return info


class Model:
    """An exported detector, segmentor or backbone.

    Args:
        session (onnxruntime.InferenceSession): Runs the graph.
        info (dict): The metadata of the file.
        path (Path): The file.
    """

    def __init__(self, session: Any, info: dict[str, Any], path: Path) -> None:
        self.session, self.info, self.path = session, info, path
        try:
            self.task: str = info['task']
            self.classes: list[str] = [str(name) for name in info['classes'] or ()]
            self.palette: list[list[int]] | None = info['palette']
            self.category_ids: list[int] | None = info['category_ids']
            self.resize: dict[str, Any] | None = info['resize']
            self.channels: int = info['channels']
            # Files of earlier versions lack it.
            self.bit_depth: int | None = info.get('bit_depth')
            self._input: dict[str, Any] = info['input']
            expected = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)'}[self._input['dtype']]
            needed = OUTPUTS[self.task]
        except (KeyError, TypeError) as error:
            raise ModelError(
                f'{path}: its metadata lacks {error}. Export the model again.'
            ) from None
        self.outputs = [output.name for output in session.get_outputs()]
        inputs = {node.name: node.type for node in session.get_inputs()}
        if inputs != {'image': expected} or not set(needed) <= set(self.outputs):
            raise ModelError(
                f'{path} does not have the inputs and outputs that its metadata states: it has '
                f'{inputs} and {self.outputs}.'
            )

    def __call__(self, image: np.ndarray | str | os.PathLike) -> Detections | Segmentation:
        """Predict for one image.

        Args:
            image: uint8 (H, W, 3), **BGR**, as OpenCV reads images; or the path of a file.

        Returns:
            Detections or Segmentation: In pixels of the image as given.

        Raises:
            ImageError: If the model cannot take it; says why.
        """
        if self.task == 'features':
            raise ModelError(
                f'{self.path} is a backbone alone, which detects and segments nothing.'
            )
        pixels = image if isinstance(image, np.ndarray) else read_image(image, self.bit_depth)
        resized = self._resized(pixels)
        outputs = self._run(resized)
        if self.task == 'detection':
            return self._detections(outputs, pixels.shape[:2], resized.shape[:2])
        return Segmentation(self._labels(outputs, pixels.shape[:2]), self.classes, self.palette)

    def features(self, image: np.ndarray | str | os.PathLike) -> list[np.ndarray]:
        """The outputs of a backbone for one image, float32 (C, h, w), the finest first.

        Args:
            image: As for a call.
        """
        pixels = image if isinstance(image, np.ndarray) else read_image(image, self.bit_depth)
        return list(self._run(self._resized(pixels)).values())

    def _resized(self, image: np.ndarray) -> np.ndarray:
        check_image(image, self.channels)
        patch = self.info.get('patch_size') or 1
        check_size(image.shape, patch)
        try:
            resized = resize_image(image, self.resize)
        except (cv2.error, ValueError) as error:
            raise ImageError(_first_line(error)) from None
        check_size(resized.shape, patch, self.info.get('padding_divisor') or 1)
        return resized

    def _run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of the graph by name, without the dimension of the batch."""
        planes = to_planes(image, **self._input)
        try:
            found = self.session.run(self.outputs, {'image': planes})
        except Exception as error:  # as above
            text = _first_line(error)
            if 'allocat' in text or 'bad_alloc' in text:
                raise MemoryError(text) from None
            size = f'{image.shape[1]}x{image.shape[0]}'
            raise ImageError(f'{size} pixels are too few for the model, or: {text}') from None
        return {name: value[0] for name, value in zip(self.outputs, found, strict=True)}

    def _detections(
        self, outputs: dict[str, np.ndarray], size: tuple[int, ...], resized: tuple[int, ...]
    ) -> Detections:
        found = outputs['labels'] >= 0  # the rest fills up a batch
        scale = np.array([resized[1] / size[1], resized[0] / size[0]] * 2, np.float32)
        boxes = outputs['boxes'][found] / scale
        masks = None
        if 'masks' in outputs:
            threshold = self.info.get('mask_thr') or 0.5
            masks = paste(outputs['masks'][found], boxes, (size[0], size[1]), threshold)
        scores, labels = outputs['scores'][found], outputs['labels'][found]
        return Detections(boxes, scores, labels, masks, self.classes, self.palette)

    def _labels(self, outputs: dict[str, np.ndarray], size: tuple[int, ...]) -> np.ndarray:
        width_height = (size[1], size[0])
        if 'labels' in outputs:
            labels = outputs['labels'].astype(label_type(len(self.classes)))
            return cv2.resize(labels, width_height, interpolation=cv2.INTER_NEAREST_EXACT)
        classes = outputs['logits']
        kind = label_type(max(len(self.classes), len(classes)))
        best, labels = np.full(size, -np.inf, np.float32), np.zeros(size, kind)
        # Class by class: all of them at the size of a photo would take gigabytes.
        for label, plane in enumerate(classes):
            logits = cv2.resize(plane, width_height, interpolation=cv2.INTER_LINEAR)
            if len(classes) == 1:
                threshold = self.info.get('binary_threshold') or 0.5
                return (logits > np.log(threshold / (1 - threshold))).astype(kind)
            better = logits > best
            best[better], labels[better] = logits[better], label
        return labels


def check_image(image: np.ndarray, channels: int = 3) -> None:
    """Raise if an array is not an image of so many channels.

    Args:
        image (np.ndarray): The array.
        channels (int): How many the model takes. Defaults to 3.
    """
    if image.dtype != np.uint8:
        raise ImageError(f'an image must be an array of uint8, 0 to 255, not of {image.dtype}')
    if image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        order = ', BGR' if channels == 3 else ''
        raise ImageError(
            f'an image must have the shape (H, W, {channels}){order}, not {image.shape}; '
            'cv2.cvtColor converts others'
        )


def check_size(shape: tuple[int, ...], patch: int, divisor: int = 1) -> None:
    """Raise for an image without a single patch; a model would find something in it anyway.

    Args:
        shape (tuple[int, ...]): Height and width, then anything.
        patch (int): The side of a patch of the network.
        divisor (int): What sides are padded to multiples of. Defaults to 1.
    """
    height, width = shape[:2]
    if min(-(-side // divisor) * divisor for side in (height, width)) < patch:
        raise ImageError(
            f'images must be at least one patch in size, {patch}x{patch}, not {height}x{width}'
        )


def _first_line(error: Exception) -> str:
    return ' '.join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
