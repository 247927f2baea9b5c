"""The ablations of the paper (section 4.1), networks that lack one idea each, and one of ours.

Ours is :func:`self_attention`, which the paper's table does not have.

An :class:`XCiT` or :class:`XCiTClassifier` is built as always, then one kind of module is replaced.
The network's own files know nothing of this. The plain modules run, unless only a parameter is
frozen.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from .classifier import XCiTClassifier
from .layers import XCA, ClassAttention
from .trunk import XCiTTrunk
from .xcit import XCiT


class LinearPatchEmbed(BaseModule):
    """One linear map of each patch, as in ViT, in place of the convolutions.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Width d of the tokens.
        patch_size (int): 8 or 16.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, embed_dims, patch_size, patch_size)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens (B, N, d) of images (B, C, H, W), padded to patches, and their grid."""
        rows, columns = (-side % self.patch_size for side in images.shape[2:])
        x = self.projection(F.pad(images, (0, columns, 0, rows)))
        return x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])


class ZeroBranch(BaseModule):
    """A branch that adds nothing."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(x)


class UnnormalizedXCA(XCA):
    """XCA without the L2 normalization of queries and keys."""

    def attention_map(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the attention between channels, (B, h, d/h, d/h)."""
        return (queries @ keys.mT * self.temperature).softmax(dim=-1)


class SelfAttention(ClassAttention):
    """Attention between tokens, whose cost grows with the square of their number.

    The projections are those of class attention; here every token asks, not the class token alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Attend over tokens (B, N, d)."""
        attended = F.scaled_dot_product_attention(*self.project(x))
        return self.proj(attended.transpose(1, 2).flatten(2))


def linear_patch(trunk: XCiTTrunk) -> None:
    """Project patches linearly."""
    trunk.patch_embed = LinearPatchEmbed(trunk.in_channels, trunk.embed_dims, trunk.patch_size)


def without_lpi(trunk: XCiTTrunk) -> None:
    """Remove local patch interaction."""
    for layer in trunk.layers:
        _remove_branch(layer, 'lpi', 'norm3', 'gamma3')


def without_xca(trunk: XCiTTrunk) -> None:
    """Remove cross-covariance attention."""
    for layer in trunk.layers:
        _remove_branch(layer, 'xca', 'norm1', 'gamma1')


def _remove_branch(layer: Any, branch: str, norm: str, gamma: str) -> None:
    setattr(layer, branch, ZeroBranch())
    setattr(layer, norm, nn.Identity())
    getattr(layer, gamma).requires_grad = False


def without_l2_norm(trunk: XCiTTrunk) -> None:
    """Do not normalize queries and keys."""
    _replace_attention(trunk, UnnormalizedXCA)


def without_temperature(trunk: XCiTTrunk) -> None:
    """Keep the temperature at 1."""
    for layer in trunk.layers:
        layer.xca.temperature.requires_grad = False  # type: ignore[union-attr]


def self_attention(trunk: XCiTTrunk) -> None:
    """Attend over tokens instead of channels."""
    _replace_attention(trunk, SelfAttention)


def _replace_attention(trunk: XCiTTrunk, kind: Callable[..., nn.Module]) -> None:
    for layer in trunk.layers:
        layer.xca = kind(trunk.embed_dims, trunk.variant.num_heads, trunk.qkv_bias)


ABLATIONS = {
    change.__name__: change
    for change in (
        linear_patch,
        without_lpi,
        without_xca,
        without_l2_norm,
        without_temperature,
        self_attention,
    )
}


class Ablated:
    """Builds a network and takes one idea out of it.

    Args:
        *args: As for the network.
        ablation (str): A name of :data:`ABLATIONS`.
        **kwargs: As for the network.
    """

    def __init__(self, *args: Any, ablation: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if ablation not in ABLATIONS:
            raise ValueError(f'ablation must be one of {", ".join(ABLATIONS)}, not {ablation!r}')
        ABLATIONS[ablation](cast(XCiTTrunk, self))


@MODELS.register_module()
class AblatedXCiT(Ablated, XCiT):
    """The backbone without one of its ideas; see :class:`Ablated`."""


@MODELS.register_module()
class AblatedXCiTClassifier(Ablated, XCiTClassifier):
    """The classifier without one of its ideas; see :class:`Ablated`."""
