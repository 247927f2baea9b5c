"""Detectors that slide a window over each image, as mmseg's segmentors do with ``mode='slide'``.

Importing this module registers them: ``SlidingMaskRCNN`` for ``MaskRCNN``, and so on. It needs
mmdet, so nothing here imports it: a config does, with
``custom_imports = dict(imports=['xcit_mm', 'xcit_mm.models.sliding_windows'])``.
"""

from typing import Any

import torch
from mmdet.models import detectors
from mmdet.structures import DetDataSample
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor
from torch.nn import functional as F

from xcit_mm_runtime.windows import Window, WindowDetections, cut_windows, merge_windows

from ..configs import SLIDING, read_preprocessor, window_settings

# Those of mmdet whose predictions are boxes, or boxes and masks.
DETECTORS = (
    *('ATSS', 'CascadeRCNN', 'FCOS', 'FasterRCNN', 'GFL', 'MaskRCNN', 'RTMDet', 'RetinaNet'),
    *('DINO', 'DeformableDETR'),
)


class SlidingWindows:
    """Lets a detector predict in windows: ``class SlidingYOLOX(SlidingWindows, YOLOX)``.

    ``test_cfg.windows = dict(size=512, overlap=128)`` are the side of the windows, and what
    neighbors have in common, in pixels of the image as the test pipeline gives it. Each window is
    predicted as an image of its own, and :func:`xcit_mm_runtime.windows.merge_windows` merges what
    they found. ``max_per_img`` of ``test_cfg`` limits the detections of each window, and then those
    of the image. Without ``windows``, and in training, it is the detector as it is.
    """

    data_preprocessor: Any
    test_cfg: Any

    @property
    def windows(self) -> dict[str, Any] | None:
        """The settings of the windows, with the limit on detections; None for whole images."""
        return window_settings(self.test_cfg)

    def predict(
        self, batch_inputs: Tensor, batch_data_samples: list[DetDataSample], rescale: bool = True
    ) -> list[DetDataSample]:
        """As in mmdet."""
        predict = super().predict  # type: ignore[misc]
        settings = self.windows
        if settings is None:
            return predict(batch_inputs, batch_data_samples, rescale=rescale)
        for image, sample in zip(batch_inputs, batch_data_samples, strict=True):
            size = sample.img_shape[:2]
            parts = cut_windows(size, settings['size'], settings['overlap'])
            if len(parts) == 1:
                predict(image[None], [sample], rescale=rescale)
                continue
            found = []
            for part in parts:
                rows, columns = part.slices
                pixels = self._pad(image[:, rows, columns])
                meta = dict(
                    img_shape=part.size,
                    ori_shape=part.size,
                    scale_factor=(1.0, 1.0),
                    pad_shape=pixels.shape[1:],
                    batch_input_shape=pixels.shape[1:],
                )
                (result,) = predict(pixels[None], [DetDataSample(metainfo=meta)], rescale=False)
                found.append(detections_of(part, result))
            merged = merge_windows(parts, found, size, settings['limit'])
            if rescale:
                size, (width, height) = sample.ori_shape[:2], sample.scale_factor
                boxes, masks = merged.rescale(size, (height, width))
            else:
                boxes, masks = merged.rescale(size)
            arrays = dict(bboxes=boxes, scores=merged.scores, labels=merged.labels, masks=masks)
            tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if v is not None}
            sample.pred_instances = InstanceData(**tensors).to(image.device)
        return batch_data_samples

    def _pad(self, image: Tensor) -> Tensor:
        """Pad an image (C, H, W) at the bottom and on the right, as the data preprocessor does."""
        prepared = read_preprocessor(self.data_preprocessor)
        height, width = (-side % prepared.divisor for side in image.shape[1:])
        return F.pad(image, (0, width, 0, height), value=prepared.pad_value)


def detections_of(window: Window, sample: DetDataSample) -> WindowDetections:
    """Return what a detector found in a window, in pixels of the image.

    Args:
        window (Window): The window.
        sample (DetDataSample): The prediction, in pixels of the window.
    """
    found = sample.pred_instances.cpu().numpy()
    return WindowDetections.of_window(
        window, found.bboxes, found.scores, found.labels, found.get('masks')
    )


def _register(name: str) -> None:
    """Register a detector of mmdet with windows."""
    bases = (SlidingWindows, getattr(detectors, name))
    kind = type(SLIDING + name, bases, {'__module__': __name__, '__doc__': SlidingWindows.__doc__})
    MODELS.register_module(module=kind)
    globals()[kind.__name__] = kind  # where pickle looks for it


for _name in DETECTORS:
    _register(_name)
