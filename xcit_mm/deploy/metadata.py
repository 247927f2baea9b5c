"""What a file says about itself: all that is needed to use it, in one JSON object."""

import hashlib
import importlib.metadata
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from ..configs import bit_depth, category_ids, resizing
from ..version import __version__
from ..weights.sources import cached_path, resolve_short_name
from .graph import Preprocess

KEY = 'xcit_mm'
FORMAT = 1


def describe(
    cfg: Config,
    model: Any,
    name: str,
    checkpoint: str,
    dataset_meta: dict[str, Any],
    task: str,
    preprocess: Preprocess,
    channel_order: str,
    opset: int | None,
) -> dict[str, Any]:
    """The description of a file.

    Args:
        cfg (Config): The config.
        model (nn.Module): The model.
        name (str): Its name.
        checkpoint (str): Where its weights came from.
        dataset_meta (dict): Names and colors of the classes, as ``class_info`` gives them.
        task (str): ``detection``, ``segmentation`` or ``features``.
        preprocess (Preprocess): What the graph does to its input.
        channel_order (str): ``rgb`` or ``bgr``, the order that the graph takes.
        opset (int, optional): Version of ONNX's operators; None for another format.
    """
    raw = preprocess.mean is not None
    mean, std = normalization(model.data_preprocessor)
    classes = [] if task == 'features' else list(dataset_meta['classes'])
    versions: dict[str, Any] = {'xcit_mm': __version__, 'torch': torch.__version__}
    if opset is not None:
        versions |= {'onnx': importlib.metadata.version('onnx'), 'opset': opset}
    return {
        'format': FORMAT,
        'task': task,
        'name': name,
        'classes': classes,
        'palette': dataset_meta['palette'] if classes else [],
        'category_ids': category_ids(cfg, classes) if task == 'detection' else None,
        'channels': model.backbone.in_channels,
        'bit_depth': bit_depth(cfg),
        'input': {
            'dtype': 'uint8' if raw else 'float32',
            'channel_order': channel_order,
            'mean': None if raw else mean,
            'std': None if raw else std,
        },
        'resize': resizing(cfg),
        'mask_thr': mask_threshold(model) if task == 'detection' else None,
        'strides': strides_of(model.backbone),
        'patch_size': model.backbone.patch_size,
        'padding_divisor': preprocess.divisor if preprocess.divisor > 1 else None,
        'binary_threshold': binary_threshold(model) if task == 'segmentation' else None,
        'checkpoint': {
            'name': checkpoint.rpartition('/')[2],
            'sha256': checkpoint_hash(checkpoint),
        },
        'versions': versions,
        'created': datetime.now(timezone.utc).isoformat(timespec='seconds'),
    }


def normalization(preprocessor: Any) -> tuple[list[float] | None, list[float] | None]:
    """Mean and deviation of each channel, or None twice if the model takes raw values."""
    if not preprocessor._enable_normalize:
        return None, None
    return preprocessor.mean.flatten().tolist(), preprocessor.std.flatten().tolist()


def strides_of(backbone: Any) -> list[int]:
    if backbone.pyramid is None:
        return [backbone.patch_size] * len(backbone.out_indices)
    return list(backbone.pyramid.strides)


def mask_threshold(model: Any) -> float | None:
    return float(model.roi_head.test_cfg.mask_thr_binary) if model.roi_head.with_mask else None


def binary_threshold(model: Any) -> float | None:
    """Above which probability mmseg labels a pixel, if there is one class only."""
    head = model.decode_head
    return float(head.threshold) if head.out_channels == 1 else None


def checkpoint_hash(checkpoint: str) -> str | None:
    """The SHA-256 of a checkpoint's file; None for weights that are no file."""
    path = Path(checkpoint).expanduser()
    if checkpoint.startswith('xcit://'):
        path = cached_path(resolve_short_name(checkpoint))
    elif '://' in checkpoint and not checkpoint.startswith('timm://'):
        path = cached_path(checkpoint)
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
