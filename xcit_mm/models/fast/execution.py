"""Chooses how the network is run: as it is written, or fast, for training or for inference.

This is the only place that decides. The fast executions compute the same numbers with the same
weights, but do not call the modules of the network one by one. So they are used only where each of
these modules is as this package made it: whoever hooks, wraps, replaces or traces a module gets the
modules themselves.
"""

from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from ..layers import (
    LPI,
    XCA,
    ConvNorm,
    ConvPatchEmbed,
    FeedForward,
    SinusoidalPositionEncoding,
    XCiTLayer,
)
from ..pyramid import Levels, MaxPool, Pyramid
from .feed_forward import add_feed_forward, feed_forward_residual
from .layout import tokens_to_map
from .lpi import add_lpi, scaled_lpi
from .operators import has_global_hooks, has_hooks, is_traced
from .pyramid import rescale_over_strips
from .recompute import RELEASE_INTERVAL, recomputed, release
from .stem import add_positions, embed_for_training, embed_over_strips
from .xca import add_xca, choose_form, scaled_xca

if TYPE_CHECKING:
    from ..trunk import XCiTTrunk

# What the fast executions know how to run.
STOCK = frozenset(
    {
        ConvPatchEmbed,
        ConvNorm,
        SinusoidalPositionEncoding,
        XCiTLayer,
        XCA,
        LPI,
        FeedForward,
        DropPath,
        Pyramid,
        Levels,
        MaxPool,
        nn.Linear,
        nn.Conv2d,
        nn.ConvTranspose2d,
        nn.LayerNorm,
        nn.BatchNorm2d,
        nn.SyncBatchNorm,
        nn.GroupNorm,
        nn.GELU,
        nn.Sequential,
        nn.ModuleList,
    }
)


class Execution(Protocol):
    """One way to run the parts of the network."""

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images (B, C, H, W) to tokens (B, N, d) with their positions, and their grid."""

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Tokens through a layer. In inference the result overwrites ``x``."""

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """What is kept of the tokens that a level of the pyramid is made of: a map."""

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        """The output of the backbone, from what was kept."""


def choose_execution(trunk: 'XCiTTrunk') -> Execution:
    """The execution for one forward pass, from the state of the network and of torch.

    Args:
        trunk (XCiTTrunk): The network.
    """
    if not trunk.fast or is_traced() or not _is_stock(trunk):
        return Plain(trunk)
    if torch.is_grad_enabled() or any(layer.training for layer in trunk.layers):
        return Training(trunk)
    return Inference(trunk)


def _is_stock(trunk: 'XCiTTrunk') -> bool:
    """Whether all that the fast executions replace is as this package made it."""
    if has_global_hooks():
        return False
    parts = (trunk.patch_embed, trunk.pos_embed, trunk.layers, getattr(trunk, 'pyramid', None))
    return all(
        type(module) in STOCK
        and not has_hooks(module)
        and all(type(p) in _PARAMETERS for p in module._parameters.values())
        for part in parts
        if part is not None
        for module in part.modules()
    )


# Subclasses of tensors, such as quantised or sharded ones, have operators of their own.
_PARAMETERS = (nn.Parameter, Tensor, type(None))


class Plain:
    """The modules as they are written, for compilers, tracers and modules that were changed."""

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = self.trunk.patch_embed(images)
        return x + self.trunk.pos_embed(*grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        layer = cast(XCiTLayer, self.trunk.layers[index])
        if self.trunk.with_cp:
            return recomputed(layer, layer, x, grid, random=True)
        return layer(x, grid)

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x.transpose(1, 2).unflatten(2, grid)

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        levels = self.trunk.pyramid(kept) if self.trunk.pyramid else kept
        return tuple(level.contiguous() for level in levels)


class Training:
    """For autograd: few activations are kept, and gradients stay in the layout of their side."""

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk
        self.recompute_ffn = trunk.recompute_ffn or trunk.with_cp

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = embed_for_training(self.trunk.patch_embed, images)
        return add_positions(x, self.trunk.pos_embed, grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        layer = cast(XCiTLayer, self.trunk.layers[index])
        if self.trunk.with_cp:
            if index % RELEASE_INTERVAL == 0:
                x = release(x)
            x = recomputed(layer, self._mix, layer, x, grid, random=True)
        else:
            x = self._mix(layer, x, grid)
        return feed_forward_residual(
            x, layer.ffn, layer.norm2, layer.gamma2, _path_scale(layer, x), self.recompute_ffn
        )

    def _mix(self, layer: XCiTLayer, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """The two branches in which tokens interact."""
        form = choose_form(self.trunk.attention, layer.xca, x.shape[1])
        x = _add(layer, x, scaled_xca(layer.xca, layer.norm1(x), layer.gamma1, form))
        return _add(layer, x, scaled_lpi(layer.lpi, layer.norm3(x), grid, layer.gamma3))

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        feature = tokens_to_map(x, grid)
        if self.trunk.pyramid is not None:
            feature = self.trunk.pyramid.levels[level](feature)
        return feature.contiguous()

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(kept)


def _add(layer: XCiTLayer, x: Tensor, branch: Tensor) -> Tensor:
    scale = _path_scale(layer, x)
    return x + (branch if scale is None else branch * scale)


def _path_scale(layer: XCiTLayer, x: Tensor) -> Tensor | None:
    """What stochastic depth multiplies a branch with, one factor per sample."""
    if not layer.drop_path.training or layer.drop_path.drop_prob == 0:
        return None
    return layer.drop_path(x.new_ones(x.shape[0], 1, 1))


class Inference:
    """Without autograd: in place, over pieces that fit the cache."""

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = embed_over_strips(self.trunk.patch_embed, images)
        return add_positions(x, self.trunk.pos_embed, grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        layer = cast(XCiTLayer, self.trunk.layers[index])
        form = choose_form(self.trunk.attention, layer.xca, x.shape[1])
        add_xca(x, layer.xca, layer.norm1, layer.gamma1, form)
        add_lpi(x, layer.lpi, grid, layer.norm3, layer.gamma3)
        add_feed_forward(x, layer.ffn, layer.norm2, layer.gamma2)
        return x

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        feature = tokens_to_map(x, grid)
        rescaled = feature
        if self.trunk.pyramid is not None:
            # At once: the next layer overwrites the tokens, and a pooled level is all that is kept.
            rescaled = rescale_over_strips(self.trunk.pyramid.levels[level], feature)
        if rescaled is feature:
            return feature.clone(memory_format=torch.contiguous_format)
        return rescaled.contiguous()

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(kept)
