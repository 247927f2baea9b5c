"""Pipelines of pre-training: timm's transforms, and what packs an image for the model."""

from typing import Any

import torch
from mmengine.registry import TRANSFORMS
from mmengine.structures import BaseDataElement
from PIL import Image

from .extras import import_timm


@TRANSFORMS.register_module()
class TimmTransform:
    """Reads an image as RGB and runs timm's augmentation or evaluation on it.

    Args:
        **settings: As for ``timm.data.create_transform``: ``input_size``, ``is_training``,
            ``auto_augment``, ``re_prob``, ``interpolation``, ``crop_pct``, ...
    """

    def __init__(self, **settings: Any) -> None:
        self.transform = import_timm('timm.data').create_transform(**settings)

    def __call__(self, data: dict) -> dict:
        """Add ``img``, a normalized tensor (3, H, W), and ``ori_shape``."""
        with Image.open(data['img_path']) as file:
            image = file.convert('RGB')
        if 'crop' in data:
            image = image.crop(data['crop'])
        size = (image.height, image.width)
        return {**data, 'img': self.transform(image), 'ori_shape': size}


@TRANSFORMS.register_module()
class PackImage:
    """Makes the ``inputs`` and ``data_samples`` of mmengine's runner."""

    def __call__(self, data: dict) -> dict:
        """Pack ``img``, or all its crops, and ``gt_label`` if there is one."""
        keys = ('img_path', 'ori_shape', 'role')
        known = {key: data[key] for key in keys if key in data}
        sample = BaseDataElement(metainfo=known)
        if 'gt_label' in data:
            sample.gt_label = torch.tensor(data['gt_label'])
        return dict(inputs=data['img'], data_samples=sample)
