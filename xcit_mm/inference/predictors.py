"""Predicts with a checkpoint: from an image to arrays, with the names and colors of classes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from xcit_mm_runtime.draw import colors
from xcit_mm_runtime.model import check_size
from xcit_mm_runtime.results import Detections, Segmentation, label_type

from ..configs import bit_depth, category_ids, innermost_datasets, nested_dicts
from ..engine import LoadWatch
from ..weights.hook import strict_loading

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation'}
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
        """Predict for one image, BGR."""


@dataclass
class CheckpointPredictor:
    """A predictor that runs mmdet's or mmseg's inferencer.

    Args:
        inferencer: What :func:`build_inferencer` returned.
        task (str): ``detection`` or ``segmentation``.
    """

    inferencer: Any
    task: str

    @property
    def classes(self) -> Sequence[str]:
        return self.inferencer.model.dataset_meta['classes']

    @property
    def palette(self) -> Sequence[Sequence[int]]:
        return self.inferencer.model.dataset_meta['palette']

    @property
    def category_ids(self) -> list[int] | None:
        """Those of the test data, if it is here: checkpoints have only the names."""
        if self.task != 'detection':
            return None
        return category_ids(self.inferencer.cfg, self.classes)

    @functools.cached_property
    def bit_depth(self) -> int | None:
        return bit_depth(self.inferencer.cfg)

    def __call__(self, image: np.ndarray) -> Result:
        check_size(image.shape, getattr(self.inferencer.model.backbone, 'patch_size', 1))
        if self.task == 'detection':
            options = dict(return_datasamples=True, no_save_vis=True, out_dir='')
            (sample,) = self.inferencer(image, **options)['predictions']
            return self._detections(sample.pred_instances)
        sample = self.inferencer(image, return_datasamples=True)
        sample = sample[0] if isinstance(sample, list) else sample
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        labels = labels.astype(label_type(max(len(self.classes), int(labels.max()) + 1)))
        return Segmentation(labels, self.classes, self.palette)

    def _detections(self, found: Any) -> Detections:
        boxes, scores, labels = (found[key].cpu().numpy() for key in ('bboxes', 'scores', 'labels'))
        masks = found.masks.cpu().numpy() if 'masks' in found else None
        return Detections(boxes, scores, labels, masks, self.classes, self.palette)


def load_predictor(
    cfg: Config,
    task: str,
    checkpoint: str | None,
    device: str | None,
    allow_partial: bool = False,
) -> CheckpointPredictor:
    """Build a model and load its weights; the arguments are those of :func:`build_inferencer`."""
    inferencer = build_inferencer(cfg, task, checkpoint, device, allow_partial)
    return CheckpointPredictor(inferencer, TASKS[task])


def build_inferencer(
    cfg: Config,
    task: str,
    checkpoint: str | None,
    device: str | None,
    allow_partial: bool = False,
) -> Any:
    """Mmdet's or mmseg's own inferencer; its ``model.dataset_meta`` is that of :func:`class_info`.

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
        def _load_weights_to_model(self, model: Any, weights: dict | None, cfg: Config) -> None:
            watch = None if allow_partial else LoadWatch(model)
            with strict_loading():
                super()._load_weights_to_model(model, weights, cfg)
            if watch is not None:
                watch.check()
            # mmdet and mmseg assume COCO or Cityscapes where the checkpoint does not say.
            model.dataset_meta = class_info(cfg, weights)

    inferencer = CompleteInferencer(cfg, checkpoint, device=device)
    inferencer.show_progress = False
    return inferencer


def class_info(cfg: Config, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
    """The names and colors of a model's classes: the checkpoint's, else the config's.

    Args:
        cfg (Config): The config.
        checkpoint (dict, optional): The content of the checkpoint.

    Returns:
        dict: ``classes``, a name for each class of the model, and ``palette``, as many RGB colors.
    """
    meta = (checkpoint or {}).get('meta') or {}
    saved = {key.lower(): value for key, value in (meta.get('dataset_meta') or meta).items()}
    dataset = next(innermost_datasets(cfg.test_dataloader))
    configured = DATASETS.build({**dataset, 'lazy_init': True}).metainfo
    counts = [node.get('num_classes') for node in nested_dicts(cfg.model)]
    count = max((n for n in counts if isinstance(n, int)), default=0)
    known = [source for source in (saved, configured) if source.get('classes')]
    # Names of another number of classes are those of other data.
    chosen = [source for source in known if len(source['classes']) == count] or known
    classes = list(chosen[0]['classes']) if chosen else []
    palettes = [source.get('palette') for source in known if list(source['classes']) == classes]
    palette = next((p for p in palettes if isinstance(p, (list, tuple))), None)
    classes += [f'class {i}' for i in range(len(classes), count)]
    # Datasets with classes of their own inherit the palette of COCO, which is longer.
    bgr = colors(len(classes), palette)[: len(classes)]
    return {'classes': classes, 'palette': [list(color[::-1]) for color in bgr]}
