"""Loads an exported model and runs it on images."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np

from .errors import ImageError, ModelError
from .inputs import read_image
from .masks import paste
from .metadata import Metadata
from .preprocess import resize_image, to_planes
from .results import Detections, Segmentation, label_type
from .windows import Window, WindowDetections, cut_windows, merge_windows

OUTPUTS = {
    'detection': {'boxes', 'scores', 'labels'},
    'segmentation': set(),
    'features': {'level_0'},
}
PROVIDERS = {'cpu': 'CPUExecutionProvider', 'cuda': 'CUDAExecutionProvider'}
INPUT_TYPES = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)'}

# Runs a graph on its input (B, C, H, W); returns its outputs by name.
Graph = Callable[[np.ndarray], dict[str, np.ndarray]]


def load(path: str | os.PathLike, threads: int = 0, device: str = 'cpu') -> 'Model':
    """Load a file that ``xcit-mm export`` wrote.

    Args:
        path (str or PathLike): An ONNX file.
        threads (int): How many processors to use. Defaults to 0, all of them.
        device (str): Where it runs, ``cpu`` or ``cuda``. Defaults to ``cpu``.

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
    providers = [PROVIDERS[device]]
    if providers[0] not in onnxruntime.get_available_providers():
        raise ModelError(
            f'This ONNX Runtime cannot use {device}: pip install onnxruntime-gpu, on a machine '
            'with a GPU.'
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime raises classes without a common base
        raise ModelError(f'{path} is damaged or not an ONNX file: {first_line(error)}') from None
    metadata = Metadata.read(session.get_modelmeta().custom_metadata_map, path)
    inputs = {node.name: node.type for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    needed, expected = OUTPUTS.get(metadata.task), INPUT_TYPES.get(metadata.input['dtype'])
    if needed is None or inputs != {'image': expected} or not needed <= set(names):
        raise ModelError(
            f'{path} does not have the inputs and outputs that its metadata states: it has '
            f'{inputs} and {names}.'
        )
    return Model(session_graph(session), metadata, path)


def session_graph(session: Any) -> Graph:
    """Return a function that runs a graph.

    Args:
        session (onnxruntime.InferenceSession): The graph.
    """
    names = [node.name for node in session.get_outputs()]
    return lambda planes: dict(zip(names, session.run(names, {'image': planes}), strict=True))


class Model:
    """An exported detector, segmentor or backbone; :func:`load` returns one.

    Args:
        graph (callable): Runs the graph: its input (B, C, H, W) to its outputs by name.
        metadata (Metadata): What the file says about itself.
        path (Path): The file.
    """

    def __init__(self, graph: Graph, metadata: Metadata, path: Path) -> None:
        self.graph, self.metadata, self.path = graph, metadata, path
        self.task = metadata.task
        self.classes = [str(name) for name in metadata.classes or ()]
        self.palette = metadata.palette
        self.category_ids = metadata.category_ids
        self.bit_depth = metadata.bit_depth

    def __call__(self, image: np.ndarray | str | os.PathLike) -> Detections | Segmentation:
        """Predict for one image.

        Args:
            image: uint8 (H, W, 3), **BGR**, as OpenCV reads images; or the path of a file.

        Returns:
            Detections or Segmentation: In pixels of the image as given.

        Raises:
            ImageError: If the model cannot take it; says why.
            MemoryError: If there is not enough memory for it.
        """
        pixels = image if isinstance(image, np.ndarray) else read_image(image, self.bit_depth)
        return self.predict_batch([pixels])[0]

    def predict_batch(self, images: Sequence[np.ndarray]) -> list[Detections | Segmentation]:
        """Predict for images of one size, in one run of the graph.

        Args:
            images (Sequence[np.ndarray]): As for a call, all of the same shape.
        """
        self.check_predicts()
        resized = np.stack([self._resize(image) for image in images])
        sizes = images[0].shape[:2], resized.shape[1:3]
        found: list[Detections | Segmentation] = []
        if (settings := self.metadata.windows) is not None:
            parts = cut_windows(sizes[1], settings['size'], settings['overlap'])
            if len(parts) > 1:
                return [self._slide(image, parts, sizes[0]) for image in resized]
        for outputs in self._run(resized):
            if self.task == 'detection':
                found.append(self._detections(outputs, *sizes))
            else:
                labels = self._labels(outputs, sizes[0])
                found.append(Segmentation(labels, self.classes, self.palette))
        return found

    def check_predicts(self) -> None:
        """Raise a :class:`ModelError` for a backbone without a head."""
        if self.task == 'features':
            raise ModelError(f'{self.path} contains only a backbone, which predicts nothing.')

    def features(self, image: np.ndarray | str | os.PathLike) -> list[np.ndarray]:
        """Return the outputs of a backbone for one image, float32 (C, h, w), the finest first.

        Args:
            image: As for a call.
        """
        pixels = image if isinstance(image, np.ndarray) else read_image(image, self.bit_depth)
        return list(self._run(self._resize(pixels)[None])[0].values())

    def run_batch(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the graph computes for images as they are, by the names of its outputs.

        Args:
            images (np.ndarray): uint8 (B, H, W, C), BGR; they are normalized but not resized.
        """
        return self.graph(to_planes(images, **self.metadata.input))

    def _resize(self, image: np.ndarray) -> np.ndarray:
        check_image(image, self.metadata.channels)
        check_size(image.shape, self.metadata.patch_size)
        try:
            resized = resize_image(image, self.metadata.resize)
        except (cv2.error, ValueError) as error:
            raise ImageError(first_line(error)) from None
        check_size(resized.shape, self.metadata.patch_size, self.metadata.padding_divisor)
        return resized

    def _run(self, images: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the outputs for each image of a batch."""
        try:
            outputs = self.run_batch(images)
        except Exception as error:  # as in load
            text = first_line(error)
            if 'allocat' in text or 'bad_alloc' in text:
                raise MemoryError(text) from None
            raise ImageError(f'the model cannot take this size: {text}') from None
        return [{name: value[i] for name, value in outputs.items()} for i in range(len(images))]

    def _detections(
        self, outputs: dict[str, np.ndarray], size: tuple[int, ...], resized: tuple[int, ...]
    ) -> Detections:
        found = outputs['labels'] >= 0  # the rest fills up a batch
        scale = np.array([resized[1] / size[1], resized[0] / size[0]] * 2, np.float32)
        boxes = outputs['boxes'][found] / scale
        masks = None
        if 'masks' in outputs:
            threshold = self.metadata.mask_thr or 0.5
            masks = paste(outputs['masks'][found], boxes, (size[0], size[1]), threshold)
        scores, labels = outputs['scores'][found], outputs['labels'][found]
        return Detections(boxes, scores, labels, masks, self.classes, self.palette)

    def _slide(
        self, image: np.ndarray, parts: Sequence[Window], size: tuple[int, ...]
    ) -> Detections:
        """Predict in windows of an image, and merge what they found.

        Args:
            image (np.ndarray): The resized image.
            parts (Sequence[Window]): The windows.
            size (tuple[int, ...]): Height and width of the image as given.
        """
        found = []
        for part in parts:
            (outputs,) = self._run(image[part.slices][None])
            one = self._detections(outputs, part.size, part.size)
            arrays = (one.boxes, cast(np.ndarray, one.scores), one.labels, one.masks)
            found.append(WindowDetections.of_window(part, *arrays))
        height, width = image.shape[:2]
        limit = cast(dict, self.metadata.windows)['limit']
        merged = merge_windows(parts, found, (height, width), limit)
        scale = (height / size[0], width / size[1])
        boxes, masks = merged.rescale((size[0], size[1]), scale)
        return Detections(boxes, merged.scores, merged.labels, masks, self.classes, self.palette)

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
                threshold = self.metadata.binary_threshold or 0.5
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


def check_size(shape: tuple[int, ...], patch: int | None, divisor: int | None = None) -> None:
    """Raise for an image without a single patch; a model would find something in it anyway.

    Args:
        shape (tuple[int, ...]): Height and width, then anything.
        patch (int, optional): The side of a patch of the network, if known.
        divisor (int, optional): What sides are padded to multiples of. Defaults to None.
    """
    height, width = shape[:2]
    divisor = divisor or 1
    if min(-(-side // divisor) * divisor for side in (height, width)) < (patch or 1):
        raise ImageError(
            f'images must be at least one patch in size, {patch}x{patch}, not {height}x{width}'
        )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message; the name of its class if it has none."""
    return ' '.join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
