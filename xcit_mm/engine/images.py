"""Describes the images of a batch, for errors and reports."""

import math
from typing import Any

import torch


def image_infos(batch: Any) -> list[dict]:
    """Return the ``metainfo`` of each image of a batch; empty where there is none."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    # Test-time augmentation makes lists of the same images.
    flat = [s for item in samples or () for s in (item if isinstance(item, list) else [item])]
    return [getattr(sample, 'metainfo', {}) for sample in flat]


def images_of(batch: Any) -> list[str]:
    """Return path and size of each image of a batch, where known."""
    names = [
        '{} ({}x{} pixels)'.format(info['img_path'], *info['ori_shape'][1::-1])
        for info in image_infos(batch)
        if 'img_path' in info and 'ori_shape' in info
    ]
    return list(dict.fromkeys(names))


def describe_images(batch: Any) -> list[dict]:
    """Return path, shape and range of each image of a batch, where known."""
    inputs = batch.get('inputs') if isinstance(batch, dict) else None
    if not isinstance(inputs, (list, torch.Tensor)):
        return []
    return [
        dict(
            path=info.get('img_path'),
            shape=list(image.shape),
            finite=bool(image.isfinite().all()),
            range=[json_number(image.min()), json_number(image.max())],
        )
        for info, image in zip(image_infos(batch), inputs, strict=False)
    ]


def json_number(value: Any) -> float | str:
    """Return a number for JSON, which has no NaN or infinity: these become text."""
    number = float(torch.as_tensor(value).detach())
    return number if math.isfinite(number) else str(number)
