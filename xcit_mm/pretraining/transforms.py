"""Pipelines of pre-training: timm's transforms, DINO's crops, and what packs an image.

Crops are for images with any number of channels: many random ones for DINO, one for evaluation.
"""

import importlib
from collections.abc import Sequence
from logging import WARNING
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import Tensor

# ImageNet's, for images in 0...1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
RATIO = (3 / 4, 4 / 3)
# Of the changes of color: twice that makes brightness 0.2...1.8 of what it was.
MAX_STRENGTH = 2.0


def import_timm(module: str) -> Any:
    """Import a module of timm, an extra that is imported where it is used.

    Args:
        module (str): Its name, such as ``timm.data``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'pre-training needs {error.name}: pip install timm', name=error.name
        ) from error


def to_tensor(image: np.ndarray) -> Tensor:
    """Convert an array (height, width, C) to a tensor (C, height, width) in 0...1.

    Args:
        image (np.ndarray): Of type uint8, uint16, int16 without negative numbers, or
            floating-point numbers in 0...1.
    """
    is_whole = image.dtype in (np.uint8, np.uint16, np.int16)
    if not is_whole and not np.issubdtype(image.dtype, np.floating):
        raise ValueError(
            f'images must be uint8, uint16 or floating-point, or int16, not {image.dtype}'
        )
    scale = np.iinfo(image.dtype).max if is_whole else 1
    array = np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32) / np.float32(scale)
    if not (array.min() >= 0 and array.max() <= 1):  # NaN is neither
        raise ValueError('floating-point images must be in 0...1, and whole numbers not below 0')
    return torch.from_numpy(array)


def normalize(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalize an image (C, H, W) in 0...1.

    Args:
        image (Tensor): The image.
        mean (Sequence[float]): Subtracted: one number per channel, or one for all.
        std (Sequence[float]): What it is then divided by, likewise.
    """
    from torchvision.transforms import functional as F

    if not {len(mean), len(std)} <= {1, len(image)}:
        raise ValueError(
            'mean and std must have one number per channel, or one for all: the image has '
            f'{len(image)} channels, mean {len(mean)} numbers and std {len(std)}'
        )
    return F.normalize(image, list(mean), list(std))


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


@TRANSFORMS.register_module()
class CenterImageCrop:
    """Resizes the short side and cuts out the middle, for evaluation.

    Args:
        size (int): Height and width of the result. Defaults to 224.
        crop_ratio (float): ``size`` over the short side. Defaults to 0.875.
        mean (Sequence[float]): See :func:`normalize`. Defaults to ImageNet's.
        std (Sequence[float]): See :func:`normalize`. Defaults to ImageNet's.
    """

    def __init__(
        self,
        size: int = 224,
        crop_ratio: float = 0.875,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        self.mean, self.std = mean, std
        self.size = size
        self.short_side = round(size / crop_ratio)

    def __call__(self, data: dict) -> dict:
        """Turn ``img``, an array, into a tensor (C, size, size)."""
        from torchvision.transforms import functional as F

        mode = F.InterpolationMode.BICUBIC
        image = to_tensor(data['img'])
        short = min(image.shape[1:])  # rounded down, as in torchvision's Resize
        sides = [max(self.size, self.short_side * side // short) for side in image.shape[1:]]
        image = F.center_crop(F.resize(image, sides, mode, antialias=True), [self.size] * 2)
        return {**data, 'img': normalize(image.clamp(0, 1), self.mean, self.std)}


@TRANSFORMS.register_module()
class MultiCrop:
    """DINO's crops: two large ones and several small ones, each augmented in its own way.

    Changes of saturation and hue, and gray, are for three channels, which are RGB. All others are
    for any number of channels.

    Args:
        global_size (int): Height and width of the large crops. Defaults to 224.
        global_scale (tuple[float, float]): Part of the image that they show. Defaults to
            (0.4, 1).
        local_size (int): Height and width of the small crops. Defaults to 96.
        local_scale (tuple[float, float]): Part of the image that they show. Defaults to
            (0.05, 0.4).
        local_crops (int): Number of small crops. Defaults to 8.
        color_strength (float): How much the colors change: 1 as in DINO, 0 not at all. It scales
            the changes of brightness, contrast, saturation and hue, and the probabilities of gray
            and of solarization. Less is better if such changes leave little that crops of an
            image share, as with photographs of one stain. Defaults to 1.
        mean (Sequence[float]): See :func:`normalize`. Defaults to ImageNet's.
        std (Sequence[float]): See :func:`normalize`. Defaults to ImageNet's.
    """

    def __init__(
        self,
        global_size: int = 224,
        global_scale: tuple[float, float] = (0.4, 1.0),
        local_size: int = 96,
        local_scale: tuple[float, float] = (0.05, 0.4),
        local_crops: int = 8,
        color_strength: float = 1.0,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        if not 0 <= color_strength <= MAX_STRENGTH:
            raise ValueError(
                f'color_strength must be from 0 to {MAX_STRENGTH:g}, not {color_strength}'
            )
        self.global_size, self.global_scale = global_size, global_scale
        self.local_size, self.local_scale = local_size, local_scale
        self.local_crops = local_crops
        self.color_strength = color_strength
        self.mean, self.std = mean, std
        self.has_warned = False

    def __call__(self, data: dict) -> dict:
        """Replace ``img``, an array, by ``global_crops`` and ``local_crops`` (crops, C, H, W)."""
        image = to_tensor(data['img'])
        height, width = image.shape[1:]
        if min(height, width) < self.global_size and not self.has_warned:
            self.has_warned = True
            size = f'{self.global_size}x{self.global_size}'
            text = f'{data.get("img_path")} ({width}x{height} pixels) and all other images that '
            text += f'are smaller than the large crops, {size}, are enlarged.'
            print_log(text, 'current', WARNING)
        large = (image, self.global_size, self.global_scale)
        crops = {
            'global_crops': [
                self._crop(*large, blur=1.0, solarize=0.0),
                self._crop(*large, blur=0.1, solarize=0.2),
            ],
            'local_crops': [
                self._crop(image, self.local_size, self.local_scale, blur=0.5, solarize=0.0)
                for _ in range(self.local_crops)
            ],
        }
        return {**data, 'img': {name: torch.stack(each) for name, each in crops.items() if each}}

    def _crop(
        self,
        image: Tensor,
        size: int,
        scale: tuple[float, float],
        blur: float,
        solarize: float,
    ) -> Tensor:
        from torchvision.transforms import RandomResizedCrop
        from torchvision.transforms import functional as F

        box = RandomResizedCrop.get_params(image, list(scale), list(RATIO))
        mode = F.InterpolationMode.BICUBIC
        x = F.resized_crop(image, *box, [size, size], mode, antialias=True).clamp(0, 1)
        if _happens(0.5):
            x = x.flip(-1)
        if _happens(0.8):
            x = _jitter(x, self.color_strength)
        if x.shape[0] == 3 and _happens(0.2 * self.color_strength):
            x = F.rgb_to_grayscale(x, num_output_channels=3)
        if _happens(blur):
            radius = min(6, (size - 1) // 2)
            x = F.gaussian_blur(x, 2 * radius + 1, _uniform(0.1, 2.0))
        if _happens(solarize * self.color_strength):
            x = torch.where(x < 0.5, x, 1 - x)
        return normalize(x, self.mean, self.std)


def _jitter(x: Tensor, strength: float) -> Tensor:
    """Change brightness and contrast, and saturation and hue of RGB, in a random order."""
    from torchvision.transforms import functional as F

    def change(most: float) -> float:
        return strength * _uniform(-most, most)

    changes: list[Any] = [
        lambda x: x * (1 + change(0.4)),
        lambda x: torch.lerp(x.mean(), x, 1 + change(0.4)),
    ]
    if x.shape[0] == 3:
        changes += [
            lambda x: F.adjust_saturation(x, 1 + change(0.2)),
            lambda x: F.adjust_hue(x, change(0.1)),
        ]
    for index in torch.randperm(len(changes)).tolist():
        x = changes[index](x).clamp(0, 1)
    return x


def _happens(probability: float) -> bool:
    return float(torch.rand(())) < probability


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
