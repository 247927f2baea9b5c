"""Predicts with a checkpoint: from an image to arrays, with the names and colors of classes."""

import functools
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from xcit_mm_runtime.draw import colors
from xcit_mm_runtime.errors import ImageError
from xcit_mm_runtime.model import check_size, first_line
from xcit_mm_runtime.predict import Result
from xcit_mm_runtime.results import Detections, Segmentation, label_type

from ..configs import bit_depth, category_ids, innermost_datasets, nested_dicts, type_name
from ..engine import LoadWatch
from ..errors import is_out_of_memory
from ..weights.hook import strict_loading

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation'}


class CheckpointPredictor:
    """Predicts as mmdet's and mmseg's own inferencers do.

    Args:
        cfg (Config): The config.
        model (nn.Module): The detector or segmentor, which :func:`load_model` returned.
    """

    def __init__(self, cfg: Config, model: Any) -> None:
        self.cfg, self.model = cfg, model
        self.task = TASKS[cfg.default_scope]
        self.classes, self.palette = (model.dataset_meta[key] for key in ('classes', 'palette'))
        self.bit_depth = bit_depth(cfg)
        self.pipeline = Compose(_steps(cfg))

    @functools.cached_property
    def category_ids(self) -> list[int] | None:
        """Those of the test data, if it is here: checkpoints have only the names."""
        return category_ids(self.cfg, self.classes) if self.task == 'detection' else None

    def __call__(self, image: np.ndarray) -> Result:
        """Predict for one image, BGR; raise ImageError or MemoryError if that is impossible."""
        with torch.no_grad():
            return self.result(self.run(image))

    def run(self, image: np.ndarray) -> Any:
        """Return mmdet's or mmseg's sample of one image, with a graph for gradients if enabled."""
        check_size(image.shape, getattr(self.model.backbone, 'patch_size', 1))
        try:
            data = self.pipeline({'img': image, 'img_id': 0})
            (sample,) = self.model.test_step({key: [value] for key, value in data.items()})
        except (MemoryError, RuntimeError, ValueError, cv2.error) as error:
            if is_out_of_memory(error):
                raise MemoryError(first_line(error)) from error
            if isinstance(error, RuntimeError):
                raise
            # Too small for the network, or too thin to be resized.
            raise ImageError(' '.join(str(error).split())) from error
        return sample

    def result(self, sample: Any) -> Result:
        """Return what a sample predicts as arrays."""
        if self.task == 'detection':
            found = sample.pred_instances.cpu().numpy()
            arrays = (found.bboxes, found.scores, found.labels, found.get('masks'))
            return Detections(*arrays, self.classes, self.palette)
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        labels = labels.astype(label_type(max(len(self.classes), int(labels.max()) + 1)))
        return Segmentation(labels, self.classes, self.palette)


def _steps(cfg: Config) -> list[dict[str, Any]]:
    """Return the test pipeline for images that are arrays and have no annotations."""
    steps = []
    for step in next(innermost_datasets(cfg.test_dataloader))['pipeline']:
        if type_name(step) == 'LoadImageFromFile':
            step = {**step, 'type': 'LoadImageFromNDArray'}
        if type_name(step) != 'LoadAnnotations':
            steps.append(step)
    return steps


def load_predictor(
    cfg: Config, checkpoint: str | None, device: str | None, allow_partial: bool = False
) -> CheckpointPredictor:
    """Build a model and load its weights; the arguments are those of :func:`load_model`."""
    return CheckpointPredictor(cfg, load_model(cfg, checkpoint, device, allow_partial))


def load_model(
    cfg: Config, checkpoint: str | None, device: str | None, allow_partial: bool = False
) -> Any:
    """Build a detector or segmentor and load its weights.

    Args:
        cfg (Config): The config.
        checkpoint (str, optional): Where the weights are; None for random ones, which are partial.
        device (str, optional): Where it runs; None for CUDA if there is one.
        allow_partial (bool): Whether to use a checkpoint that leaves parameters unset. Defaults to
            False.

    Returns:
        nn.Module: In eval mode; its ``dataset_meta`` is that of :func:`class_info`.
    """
    model = build_model(cfg)
    load_weights(model, cfg, checkpoint, allow_partial)
    return model.to(device or ('cuda' if torch.cuda.is_available() else 'cpu'))


def build_model(cfg: Config) -> Any:
    """Build a detector or segmentor with random weights, in eval mode.

    Args:
        cfg (Config): The config.
    """
    init_default_scope(cfg.default_scope)
    return revert_sync_batchnorm(MODELS.build(cfg.model)).eval()


def load_weights(
    model: Any, cfg: Config, checkpoint: str | None, allow_partial: bool = False
) -> None:
    """Load weights into a model that :func:`build_model` returned; see :func:`load_model`."""
    content = None
    watch = None if allow_partial else LoadWatch(model)
    if checkpoint is not None:
        with strict_loading():
            content = load_checkpoint(model, checkpoint, map_location='cpu')
    if watch is not None:
        watch.check()
    model.dataset_meta = class_info(cfg, content)


def class_info(cfg: Config, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
    """Return the names and colors of a model's classes: the checkpoint's, else the config's.

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
