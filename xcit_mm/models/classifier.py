"""The ImageNet classifier: the same trunk, class attention and a linear head."""

from typing import Any

import torch
from mmengine.model.weight_init import trunc_normal_
from mmengine.registry import MODELS
from torch import Tensor, nn

from .blocks import LAYER_NORM_EPS, ClassAttentionLayer
from .trunk import XCiTTrunk
from .variants import resolve_variant

NUM_CLASS_LAYERS = 2


@MODELS.register_module()
class XCiTClassifier(XCiTTrunk):
    """XCiT as it was trained on ImageNet, to verify and use its weights.

    Args:
        arch (str or dict): As in :class:`XCiT`. Defaults to ``s12``.
        patch_size (int): 8 or 16. Defaults to 16.
        num_classes (int): Number of classes; 0 leaves out the head, as in the DINO models, and
            the output is the normalised class token. Defaults to 1000.
        in_channels (int): Channels of the images. Defaults to 3.
        mlp_ratio (float): As in :class:`XCiT`. Defaults to 4.
        qkv_bias (bool): As in :class:`XCiT`. Defaults to True.
        drop_path_rate (float, optional): As in :class:`XCiT`. Defaults to None.
        layer_scale_init (float, optional): As in :class:`XCiT`. Defaults to None.
        norm_cfg (dict): As in :class:`XCiT`. Defaults to ``dict(type='BN')``.
        norm_eval (bool): As in :class:`XCiT`. Defaults to False.
        frozen_stages (int): As in :class:`XCiT`. Defaults to -1.
        with_cp (bool): As in :class:`XCiT`. Defaults to False.
        recompute_ffn (bool): As in :class:`XCiT`. Defaults to False.
        attention (str): As in :class:`XCiT`. Defaults to ``auto``.
        init_cfg (dict or list[dict], optional): Initialization config. Defaults to None.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 16,
        num_classes: int = 1000,
        in_channels: int = 3,
        mlp_ratio: float = 4,
        qkv_bias: bool = True,
        drop_path_rate: float | None = None,
        layer_scale_init: float | None = None,
        norm_cfg: dict = dict(type='BN'),  # noqa: B006  a config value, never changed
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        recompute_ffn: bool = False,
        attention: str = 'auto',
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        variant = resolve_variant(arch, patch_size)
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(f'num_classes must be an int of at least 0, not {num_classes!r}')
        super().__init__(
            variant,
            patch_size,
            in_channels,
            mlp_ratio,
            qkv_bias,
            drop_path_rate,
            layer_scale_init,
            norm_cfg,
            norm_eval,
            frozen_stages,
            with_cp,
            recompute_ffn,
            attention,
            init_cfg,
        )
        self.num_classes = num_classes
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        self.cls_layers = nn.ModuleList(
            ClassAttentionLayer(
                self.embed_dims,
                variant.num_heads,
                mlp_ratio,
                qkv_bias,
                self.drop_path_rate,
                self.layer_scale_init,
                variant.tokens_norm,
            )
            for _ in range(NUM_CLASS_LAYERS)
        )
        self.norm = nn.LayerNorm(self.embed_dims, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(self.embed_dims, num_classes) if num_classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Classify images (B, C, H, W): logits (B, num_classes)."""
        for x, _ in self.trunk_outputs(images):  # noqa: B007  the last one counts
            pass
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        for layer in self.cls_layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))

    def init_weights(self) -> None:
        if not self.is_init:
            trunc_normal_(self.cls_token, std=0.02)
        super().init_weights()
