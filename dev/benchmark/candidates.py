"""The networks to measure: our backbone, timm's, and alternatives from mmdet."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.models.pyramid import STRIDES, Pyramid
from xcit_mm.models.variants import FEATURE_LAYERS

TIMM_SIZES = {'n': 'nano', 't': 'tiny', 's': 'small', 'm': 'medium', 'l': 'large'}
# Backbones that mmdet ships, with the widths of their levels.
MMDET_BACKBONES: dict[str, tuple[dict[str, Any], list[int]]] = {
    'resnet50': ({'type': 'ResNet', 'depth': 50}, [256, 512, 1024, 2048]),
    'swin_t': ({'type': 'SwinTransformer', 'convert_weights': False}, [96, 192, 384, 768]),
    'pvt_small': (
        {'type': 'PyramidVisionTransformer', 'num_layers': [3, 4, 6, 3]},
        [64, 128, 320, 512],
    ),
}
NAMES = ('ours', 'timm', *MMDET_BACKBONES)
# Whole classifiers, as in the paper's table of run time, by the names in tables.
CLASSIFIERS = {
    'resnet50': 'ResNet-50',
    'deit_s': 'DeiT-S',
    'cait_s12': 'CaiT-S12',
    'pvt_small': 'PVT-Small',
    'swin_t': 'Swin-T',
    'timm': 'XCiT-S12/16 (timm)',
    'ours': 'XCiT-S12/16 (ours)',
}
# Modes of build_step with a whole detector, and those that train. After "amp", under autocast.
DETECTION = ('detect', 'learn to detect')
TRAINING = ('train', 'learn to detect', 'dino')
AMP = 'amp '


class TimmBackbone(nn.Module):
    """timm's XCiT with timm's own way to get features, optionally rescaled by our pyramid."""

    def __init__(
        self, arch: str, patch_size: int, pyramid: bool, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        import timm

        name = f'xcit_{TIMM_SIZES[arch[0]]}_{arch[1:]}_p{patch_size}_224'
        self.model = timm.create_model(name, pretrained=False, drop_path_rate=drop_path_rate)
        # Class attention and head are not needed for features.
        self.indices = list(FEATURE_LAYERS[len(self.model.blocks)])
        self.embed_dims = self.model.embed_dim
        self.pyramid = (
            Pyramid(self.embed_dims, patch_size, STRIDES[:4], {'type': 'BN'}) if pyramid else None
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.model.forward_intermediates(
            images, indices=self.indices, intermediates_only=True
        )
        return tuple(features) if self.pyramid is None else self.pyramid(features)


class PooledClassifier(nn.Module):
    """A linear classifier on the mean of a backbone's last features."""

    def __init__(self, backbone: nn.Module, width: int, num_classes: int = 1000) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images)[-1].mean(dim=(2, 3)))


class InterpolatedPositions(nn.Module):
    """Runs a network of timm, which has positions of one size, on images of any size."""

    def __init__(self, model: Any, patch_size: int = 16) -> None:
        super().__init__()
        model.patch_embed.strict_img_size = False
        self.model, self.patch_size = model, patch_size

    def forward(self, images: Tensor) -> Tensor:
        from timm.layers import resample_abs_pos_embed

        grid = [side // self.patch_size for side in images.shape[2:]]
        positions = resample_abs_pos_embed(self.model.pos_embed, grid, num_prefix_tokens=0)
        return torch.func.functional_call(self.model, {'pos_embed': positions}, (images,))


def build_classifier(name: str) -> nn.Module:
    """Build one of :data:`CLASSIFIERS`, for images of any size."""
    import timm
    from timm.models.cait import Cait

    if name == 'ours':
        return XCiTClassifier('s12', 16)
    if name == 'timm':
        return timm.create_model('xcit_small_12_p16_224')
    if name == 'deit_s':
        return timm.create_model('deit_small_patch16_224', dynamic_img_size=True)
    if name == 'swin_t':
        return timm.create_model('swin_tiny_patch4_window7_224', strict_img_size=False)
    if name == 'cait_s12':
        # timm has it with 24 layers and more.
        return InterpolatedPositions(Cait(embed_dim=384, depth=12, num_heads=8, init_values=1e-5))
    if name == 'pvt_small':
        return PooledClassifier(build_backbone(name), MMDET_BACKBONES[name][1][-1])
    return timm.create_model(name)


def build_backbone(
    name: str,
    arch: str = 's12',
    patch_size: int = 16,
    pyramid: bool = False,
    drop_path_rate: float = 0.0,
    **options: Any,
) -> nn.Module:
    """Build one of :data:`NAMES`.

    Args:
        name (str): ``ours``, ``timm``, ``resnet50``, ``swin_t`` or ``pvt_small``.
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        pyramid (bool): Whether an XCiT's features are rescaled.
        drop_path_rate (float): Stochastic depth of an XCiT. Defaults to 0.
        **options: More arguments of our :class:`XCiT`.
    """
    if name == 'ours':
        return XCiT(arch, patch_size, pyramid=pyramid, drop_path_rate=drop_path_rate, **options)
    if name == 'timm':
        return TimmBackbone(arch, patch_size, pyramid, drop_path_rate)
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules

    register_all_modules()
    return MODELS.build(MMDET_BACKBONES[name][0])


def build_detector(name: str, arch: str = 's12', patch_size: int = 16, **options: Any) -> nn.Module:
    """Build mmdet's Mask R-CNN on one of the backbones; see :func:`build_backbone`."""
    from mmdet.utils import register_all_modules
    from mmengine.config import Config
    from mmengine.registry import MODELS
    from mmengine.utils import get_installed_path

    register_all_modules()
    folder = get_installed_path('mmdet')
    base = Config.fromfile(f'{folder}/.mim/configs/_base_/models/mask-rcnn_r50_fpn.py').model
    base.backbone = {'type': 'ResNet', 'depth': 50}
    if name in MMDET_BACKBONES:
        base.backbone, base.neck.in_channels = MMDET_BACKBONES[name]
        return MODELS.build(base)
    backbone = build_backbone(name, arch, patch_size, pyramid=True, **options)
    dims = backbone.embed_dims if isinstance(backbone, (XCiT, TimmBackbone)) else 0
    base.neck.in_channels = [dims] * 4
    detector = MODELS.build(base)
    detector.backbone = backbone
    return detector


def build_dino(name: str, arch: str = 's12', patch_size: int = 16, **options: Any) -> nn.Module:
    """Build DINO's student and teacher on our classifier or on timm's, with DINO's own head.

    Args:
        name (str): ``ours`` or ``timm``.
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        **options: More arguments of our :class:`XCiTClassifier`.
    """
    from xcit_mm.pretraining.dino import DINO

    settings = dict(arch=arch, patch_size=patch_size, drop_path_rate=0.0, norm_cfg=dict(type='BN'))
    model: Any = DINO(dict(type='XCiTClassifier', **settings, **options))
    if name == 'timm':
        for branch in (model.student, model.teacher):
            branch.backbone = TimmBackbone(arch, patch_size, pyramid=False).model
            branch.backbone.reset_classifier(0)
        model.teacher.requires_grad_(False)
        model.copy_student()
    return model


def build(mode: str, device: str, candidate: dict[str, Any]) -> nn.Module:
    """Build a candidate for a mode of :func:`build_step`, with the same random weights every time.

    Args:
        mode (str): What it will do.
        device (str): Where.
        candidate (dict): Arguments of the function that builds it.
    """
    torch.manual_seed(0)
    builders: dict[str, Callable[..., nn.Module]] = {
        **dict.fromkeys(DETECTION, build_detector),
        'dino': build_dino,
        'classify': build_classifier,
    }
    return builders.get(mode.removeprefix(AMP), build_backbone)(**candidate).to(device)


def share_weights(first: Any, second: Any) -> None:
    """Give the weights of timm's XCiT to ours, if that is what the two are."""
    if isinstance(first, TimmBackbone) and isinstance(second, XCiT):
        second.load_state_dict(first.model.state_dict())
    if hasattr(first, 'student') and hasattr(second, 'student'):
        for branch, other in ((first.student, second.student), (first.teacher, second.teacher)):
            other.backbone.load_state_dict(branch.backbone.state_dict())
            other.head.load_state_dict(branch.head.state_dict())


def crops_like(height: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return DINO's crops of random images: 2 large ones, and 8 of 3/7 of their size."""
    generator = torch.Generator().manual_seed(0)
    small = round(height * 3 / 7)
    large_crops = torch.randn(2, batch, 3, height, height, generator=generator)
    return large_crops, torch.randn(8, batch, 3, small, small, generator=generator)


def scene(height: int, width: int, device: str, objects: int = 8) -> Any:
    """Return an image's annotation in mmdet's form: boxes along its diagonal, with masks."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    shape = {'img_shape': (height, width), 'ori_shape': (height, width)}
    sizes = {'batch_input_shape': (height, width), 'pad_shape': (height, width)}
    sample = DetDataSample(metainfo={**shape, **sizes, 'scale_factor': (1.0, 1.0)})
    corners = torch.linspace(0, 0.9, objects + 1)
    boxes = torch.stack([corners[:-1], corners[:-1], corners[1:], corners[1:]], 1)
    boxes *= torch.tensor([width, height, width, height])
    masks = np.zeros((objects, height, width), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    labels = torch.arange(objects)
    sample.gt_instances = InstanceData(
        bboxes=boxes, labels=labels, masks=BitmapMasks(masks, height, width)
    )
    return sample.to(device)


def build_step(
    mode: str, model: nn.Module, height: int, width: int, *, batch: int = 1, device: str = 'cpu'
) -> Callable[[], None]:
    """Return a function that does the measured work once, and waits for its end.

    Args:
        mode (str): ``infer`` or ``train`` for a backbone, ``classify`` for a classifier, ``detect``
            or ``learn to detect`` for a detector, ``dino`` for what :func:`build_dino` returned;
            after ``amp``, under autocast.
        model (nn.Module): What :func:`build` returned.
        height (int): Height of the images.
        width (int): Their width.
        batch (int): Their number. Defaults to 1.
        device (str): Where the model is. Defaults to ``cpu``.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, height, width, generator=generator).to(device)

    def infer() -> None:
        with torch.inference_mode():
            model(images)

    def train() -> None:
        model.zero_grad(set_to_none=True)
        features = model(images)
        torch.stack([feature.square().mean() for feature in features]).sum().backward()

    def detect() -> None:
        with torch.inference_mode():
            model(images, samples, mode='predict')

    def learn_to_detect() -> None:
        model.zero_grad(set_to_none=True)
        losses = model(images, samples, mode='loss')
        cast(Any, model).parse_losses(losses)[0].backward()

    def dino() -> None:
        model.zero_grad(set_to_none=True)
        cast(Any, model).loss(*crops)['loss'].backward()

    crops = [c.to(device) for c in crops_like(height, batch)] if mode == 'dino' else []
    is_amp, mode = mode.startswith(AMP), mode.removeprefix(AMP)
    samples = [scene(height, width, device)] * batch if mode in DETECTION else []
    model.train(mode in TRAINING)
    works = {'infer': infer, 'train': train, 'detect': detect, 'learn to detect': learn_to_detect}
    work = {**works, 'dino': dino, 'classify': infer}[mode]

    def work_and_wait() -> None:
        with torch.autocast(device, enabled=is_amp):
            work()
        if device != 'cpu':
            torch.cuda.synchronize()

    return work_and_wait
