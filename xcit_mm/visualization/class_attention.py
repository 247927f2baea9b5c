"""Class attention (the paper's class-attention figure)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models.classifier import XCiTClassifier
from ..models.trunk import XCiTTrunk
from .drawing import HeatMaps
from .images import Normalize, Preprocess
from .observe import Picture, run_picture

COLUMNS = 8


def class_attention(
    backbone: XCiTTrunk,
    image: np.ndarray,
    preprocess: Preprocess = Normalize(),  # noqa: B008  it never changes
    figure: bool = False,
) -> Any:
    """Return the attention from the class token to the patches, as heat maps over the image.

    Args:
        backbone (XCiTClassifier): A classifier, or a DINO model (``num_classes=0``).
        image (np.ndarray): See :func:`as_rgb`.
        preprocess (callable): RGB image to tensor. Defaults to ImageNet's mean and deviation.
        figure (bool): Whether to return the figure as well. Defaults to False.

    Returns:
        np.ndarray or tuple[np.ndarray, Figure]: (class layers, heads, H, W). The rest, up to a sum
        of 1, is the attention of the class token to itself.
    """
    return run_picture(ClassAttentionMaps(backbone), image, preprocess, figure)


class ClassAttentionMaps(Picture):
    """The picture; see :func:`class_attention`."""

    def __init__(self, backbone: XCiTTrunk) -> None:
        if not isinstance(backbone, XCiTClassifier):
            raise ValueError(
                'the backbone of a detector or segmentor has no class attention; classifier and '
                'DINO weights have it'
            )
        self.backbone = backbone
        self.maps: list[np.ndarray] = []

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        if depth < len(self.backbone.layers):
            return
        x = torch.cat([self.backbone.cls_token, tokens], dim=1)
        layers: Any = self.backbone.cls_layers
        for layer in layers:
            queries, keys, _ = layer.attn.project(layer.norm1(x))
            attention = layer.attn.attention_map(queries, keys)[0, :, 0, 1:]
            self.maps.append(attention.unflatten(1, grid).float().cpu().numpy())
            x = layer(x)

    def result(self) -> np.ndarray:
        return np.stack(self.maps)

    def heat_maps(self) -> HeatMaps:
        return HeatMaps(
            'Class attention: from the class token to the patches',
            [f'head {i + 1}' for i in range(self.backbone.variant.num_heads)],
            {f'class layer {i + 1}': list(maps) for i, maps in enumerate(self.maps)},
            COLUMNS,
            self.backbone.patch_size,
            'attention',
        )
