"""Describes an exported model: how its input is prepared, and what else is needed to use it."""

import hashlib
import importlib.metadata
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from xcit_mm_runtime.metadata import Metadata

from ..configs import bit_depth, category_ids, read_preprocessor, resizing
from ..version import __version__
from ..weights.sources import cached_path, resolve_short_name


@dataclass
class Options:
    """What the user asks for.

    Args:
        format (str): ``onnx`` or ``torch``.
        backbone (bool): Whether to export the backbone alone. Defaults to False.
        labels (bool): Whether a segmentor gives labels, not logits. Defaults to False.
        uint8 (bool): Whether the graph takes raw values and normalizes them. Defaults to False.
        channel_order (str): Order of the channels of raw values. Defaults to ``rgb``.
        opset (int): Version of ONNX's operators. Defaults to 18.
        precision (str): ``float32``, ``float16`` or ``int8``. Defaults to ``float32``.
    """

    format: str = 'onnx'
    backbone: bool = False
    labels: bool = False
    uint8: bool = False
    channel_order: str = 'rgb'
    opset: int = 18
    precision: str = 'float32'


def task_of(model: Any, options: Options) -> str:
    """Return what the exported model does: ``features``, ``segmentation`` or ``detection``."""
    if options.backbone:
        return 'features'
    return 'segmentation' if hasattr(model, 'decode_head') else 'detection'


def describe(cfg: Config, model: Any, options: Options, name: str, checkpoint: str) -> Metadata:
    """Return the metadata of an exported model.

    Args:
        cfg (Config): The config.
        model (nn.Module): The model; ``dataset_meta`` has the names and colors of its classes.
        options (Options): What the user asks for.
        name (str): The name of the model.
        checkpoint (str): Where its weights came from.
    """
    task, prepared = task_of(model, options), read_preprocessor(model.data_preprocessor)
    classes = [] if task == 'features' else list(model.dataset_meta['classes'])
    versions: dict[str, Any] = {'xcit_mm': __version__, 'torch': torch.__version__}
    if options.format == 'onnx':
        versions |= {'onnx': importlib.metadata.version('onnx'), 'opset': options.opset}
    backbone, mask_thr, binary_threshold = model.backbone, None, None
    if task == 'detection' and model.roi_head.with_mask:
        mask_thr = float(model.roi_head.test_cfg.mask_thr_binary)
    if task == 'segmentation' and model.decode_head.out_channels == 1:
        binary_threshold = float(model.decode_head.threshold)
    return Metadata(
        task=task,
        name=name,
        classes=classes,
        palette=model.dataset_meta['palette'] if classes else [],
        category_ids=category_ids(cfg, classes) if task == 'detection' else None,
        channels=backbone.in_channels,
        bit_depth=bit_depth(cfg),
        input={
            'dtype': 'uint8' if options.uint8 else 'float32',
            'channel_order': options.channel_order if options.uint8 else prepared.channel_order,
            'mean': None if options.uint8 else prepared.mean,
            'std': None if options.uint8 else prepared.std,
        },
        resize=resizing(cfg),
        mask_thr=mask_thr,
        strides=strides_of(backbone),
        patch_size=backbone.patch_size,
        padding_divisor=prepared.divisor if prepared.divisor > 1 else None,
        binary_threshold=binary_threshold,
        windows=getattr(model, 'windows', None) if task == 'detection' else None,
        precision=options.precision,
        checkpoint={'name': checkpoint.rpartition('/')[2], 'sha256': checkpoint_hash(checkpoint)},
        versions=versions,
        created=datetime.now(timezone.utc).isoformat(timespec='seconds'),
    )


def strides_of(backbone: Any) -> list[int]:
    """Return the stride of each level that a backbone gives."""
    if backbone.pyramid is None:
        return [backbone.patch_size] * len(backbone.out_indices)
    return list(backbone.pyramid.strides)


def checkpoint_hash(checkpoint: str) -> str | None:
    """Return the SHA-256 of a checkpoint's file; None for weights that are no file."""
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
