"""The ImageNet classifier: the same trunk, class attention and a linear head."""

from typing import Any

import torch
from mmengine.model.weight_init import trunc_normal_
from mmengine.registry import MODELS
from torch import Tensor, nn

from .fast import Execution, choose_execution, fingerprint
from .layers import ClassAttentionLayer
from .layers.xcit_layer import LAYER_NORM_EPS
from .trunk import XCiTTrunk
from .variants import resolve_variant

NUM_CLASS_LAYERS = 2


@MODELS.register_module()
class XCiTClassifier(XCiTTrunk):
    """XCiT as it was trained on ImageNet, to verify and use its weights.

    Args:
        arch (str or dict): As in :class:`XCiT`. Defaults to ``s12``.
        patch_size (int): 8 or 16. Defaults to 16.
        num_classes (int): Number of classes. With 0 there is no head, as in the DINO models, and
            the output is the normalized class token. Defaults to 1000.
        **trunk: The arguments of :class:`XCiT` that do not concern features: ``in_channels``,
            ``mlp_ratio``, ``qkv_bias``, ``drop_path_rate``, ``layer_scale_init``, ``norm_cfg``,
            ``norm_eval``, ``frozen_stages``, ``with_cp``, ``recompute_ffn``, ``attention``,
            ``fast``, ``compile`` and ``init_cfg``.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 16,
        num_classes: int = 1000,
        **trunk: Any,
    ) -> None:
        variant = resolve_variant(arch, patch_size)
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(f'num_classes must be an int of at least 0, not {num_classes!r}')
        super().__init__(variant, patch_size=patch_size, **trunk)
        self.num_classes = num_classes
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        self.cls_layers = nn.ModuleList(
            ClassAttentionLayer(
                self.embed_dims,
                num_heads=variant.num_heads,
                mlp_ratio=self.mlp_ratio,
                qkv_bias=self.qkv_bias,
                layer_scale_init=self.layer_scale_init,
                tokens_norm=variant.tokens_norm,
            )
            for _ in range(NUM_CLASS_LAYERS)
        )
        self.norm = nn.LayerNorm(self.embed_dims, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(self.embed_dims, num_classes) if num_classes else nn.Identity()
        self.as_built = fingerprint(self)

    def forward(self, images: Tensor) -> Tensor:
        """Classify images (B, C, H, W): logits (B, num_classes)."""
        return super().forward(images)

    def run(self, images: Tensor, execution: Execution) -> Tensor:
        """Classify images by an execution."""
        for x, _ in self.trunk_outputs(images, execution):  # noqa: B007  only the last one is used
            pass
        return self.classify(x, execution)

    def classify(self, tokens: Tensor, execution: Execution | None = None) -> Tensor:
        """Return the logits (B, num_classes).

        Args:
            tokens (Tensor): The tokens after the last layer, (B, N, d).
            execution (Execution, optional): How class attention is run. Defaults to None, chosen
                for the state of the network and of torch.
        """
        execution = execution or choose_execution(self, tokens)
        return self.head(self.norm(execution.class_token(tokens)))

    def class_token(self, tokens: Tensor) -> Tensor:
        """Return the class token (B, d) after class attention over the tokens (B, N, d)."""
        x = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        for layer in self.cls_layers:
            x = layer(x)
        return x[:, 0]

    def init_weights(self) -> None:
        if not self.is_init:
            trunc_normal_(self.cls_token, std=0.02)
        super().init_weights()
