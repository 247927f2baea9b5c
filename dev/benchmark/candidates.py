"""The networks to measure: our backbone, timm's, and alternatives from mmdet."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from xcit_mm.models import XCiT
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


class TimmBackbone(nn.Module):
    """timm's XCiT with timm's own way to get features, optionally rescaled by our pyramid."""

    def __init__(self, arch: str, patch_size: int, pyramid: bool) -> None:
        super().__init__()
        import timm

        name = f'xcit_{TIMM_SIZES[arch[0]]}_{arch[1:]}_p{patch_size}_224'
        self.model = timm.create_model(name, pretrained=False)
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


def build_backbone(
    name: str, arch: str = 's12', patch_size: int = 16, pyramid: bool = False, **options: Any
) -> nn.Module:
    """Build one of :data:`NAMES`.

    Args:
        name (str): ``ours``, ``timm``, ``resnet50``, ``swin_t`` or ``pvt_small``.
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        pyramid (bool): Whether an XCiT's features are rescaled.
        **options: More arguments of our :class:`XCiT`.
    """
    if name == 'ours':
        return XCiT(arch, patch_size, pyramid=pyramid, drop_path_rate=0.0, **options)
    if name == 'timm':
        return TimmBackbone(arch, patch_size, pyramid)
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules

    register_all_modules()
    return MODELS.build(MMDET_BACKBONES[name][0])


def build_detector(name: str, arch: str = 's12', patch_size: int = 16) -> nn.Module:
    """Build mmdet's Mask R-CNN on one of the backbones."""
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
    backbone = build_backbone(name, arch, patch_size, pyramid=True)
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
    builders: dict[str, Callable[..., nn.Module]] = {'detect': build_detector, 'dino': build_dino}
    return builders.get(mode, build_backbone)(**candidate).to(device)


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


def build_step(
    mode: str, model: nn.Module, height: int, width: int, *, batch: int = 1, device: str = 'cpu'
) -> Callable[[], None]:
    """Return a function that does the measured work once, and waits for its end.

    Args:
        mode (str): ``infer``, ``train`` or ``amp`` (training under autocast) for a backbone,
            ``detect`` for a detector, ``dino`` for what :func:`build_dino` returned.
        model (nn.Module): What :func:`build_backbone` or :func:`build_detector` returned.
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

    def amp() -> None:
        with torch.autocast(device):
            train()

    def detect() -> None:
        from mmdet.structures import DetDataSample

        shape = {'img_shape': (height, width), 'ori_shape': (height, width)}
        sample = DetDataSample(metainfo={**shape, 'scale_factor': (1.0, 1.0)})
        with torch.inference_mode():
            model(images, [sample], mode='predict')

    def dino() -> None:
        model.zero_grad(set_to_none=True)
        cast(Any, model).loss(*crops)['loss'].backward()

    crops = [c.to(device) for c in crops_like(height, batch)] if mode == 'dino' else []
    model.train(mode in ('train', 'amp', 'dino'))
    works = {'infer': infer, 'train': train, 'amp': amp, 'detect': detect, 'dino': dino}
    work = works[mode]
    if device == 'cpu':
        return work

    def work_and_wait() -> None:
        work()
        torch.cuda.synchronize()

    return work_and_wait
