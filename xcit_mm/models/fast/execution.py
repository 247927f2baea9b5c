"""Chooses how the network is run: as it is written, or fast, with or without autograd.

This is the only place that decides. The fast executions compute the same numbers with the same
weights, but do not call the modules of the network one by one. So they are used only while each of
these modules is as this package built it: if you hook, wrap, replace or trace a module, the modules
themselves run.
"""

import inspect
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from ..layers import (
    LPI,
    XCA,
    ClassAttention,
    ClassAttentionLayer,
    ConvNorm,
    ConvPatchEmbed,
    FeedForward,
    SinusoidalPositionEncoding,
    XCiTLayer,
)
from ..pyramid import Pyramid
from . import operators
from .class_attention import gather_class_token
from .feed_forward import add_feed_forward, feed_forward_residual
from .layout import tokens_to_map
from .lpi import add_lpi, scaled_lpi
from .operators import Snapshot, describe, has_all_parts, has_global_hooks, is_traced, tree
from .pyramid import rescale_for_training, rescale_over_strips
from .recompute import RELEASE_INTERVAL, recomputed, release
from .residual import add_branch, over_kept_samples, path_scales, split_layer_scale
from .stem import add_positions, embed_for_training, embed_over_strips
from .xca import add_xca, choose_form, scaled_xca

if TYPE_CHECKING:
    from ..trunk import XCiTTrunk


class Execution:
    """Runs the parts of the network as they are written.

    The fast executions compute the same in their own way.

    Args:
        trunk (XCiTTrunk): The network.
    """

    def __init__(self, trunk: Any) -> None:
        self.trunk = trunk

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Turn images (B, C, H, W) into tokens (B, N, d) with positions, and return their grid."""
        return self.trunk.embed(images)

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Run tokens through a layer. In inference, the result may overwrite ``x``."""
        return self.trunk.run_layer(index, x, grid)

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Keep the tokens for a level of the pyramid, as a map."""
        return self.trunk.keep(level, x, grid)

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the output of the backbone, from what was kept."""
        return self.trunk.finish(kept)

    def class_token(self, tokens: Tensor) -> Tensor:
        """Return a classifier's class token (B, d), from the tokens (B, N, d) after all layers."""
        return self.trunk.class_token(tokens)


def choose_execution(trunk: 'XCiTTrunk', *inputs: Any, compiled: bool = False) -> Execution:
    """Choose the execution for one forward pass, from the state of the network and of torch.

    Args:
        trunk (XCiTTrunk): The network.
        *inputs: What it is called with, by which a tracer of ``torch.fx`` is known.
        compiled (bool): Whether a user compiles the network, so that its layers are compiled even
            if ``compile`` is off. Defaults to False.
    """
    if not (trunk.fast and has_all_parts()):
        return Execution(trunk)
    if is_traced(*inputs) or has_global_hooks() or is_changed(trunk):
        return Execution(trunk)
    # BatchNorm looks at its own mode. Stochastic depth is all else that differs in training.
    paths = (cast(XCiTLayer, layer).drop_path for layer in trunk.layers)
    is_trained = torch.is_grad_enabled() or any(p.training and p.drop_prob > 0 for p in paths)
    if trunk.compiled or compiled:
        from .compiled import CompiledDifferentiable, CompiledInference

        return CompiledDifferentiable(trunk) if is_trained else CompiledInference(trunk)
    return Differentiable(trunk) if is_trained else Inference(trunk)


def is_changed(trunk: 'XCiTTrunk') -> bool:
    """Return whether the network is not as this package built it."""
    if any(getattr(kind, name) is not method for (kind, name), method in _METHODS.items()):
        return True  # patched in the class, for all modules
    methods = (getattr(trunk, name, None) for name in _OVERRIDABLE)
    if any(part is not None and not part.__module__.startswith(_PACKAGE) for part in methods):
        return True  # a subclass has its own
    if operators.MISSING:
        return False  # modules cannot be compared
    parts = _parts(trunk)
    checked = _CHECKED.get(trunk)
    if checked is not None and checked[0] == parts and checked[1].is_current():
        return False
    if fingerprint(trunk) != trunk.as_built:
        return True
    modules = [module for part in parts for module in tree(part)]
    _CHECKED[trunk] = parts, Snapshot(modules, _SETTINGS)
    return False


def fingerprint(trunk: 'XCiTTrunk') -> list[tuple]:
    """Describe the modules that the fast executions replace, one entry per module.

    It changes as soon as a module is hooked, wrapped, parametrized, or replaced by one of another
    class or with other settings.

    Args:
        trunk (XCiTTrunk): The network.
    """
    if operators.MISSING:
        return []
    return [
        describe(module, _SETTINGS.get(type(module), ()))
        for part in _parts(trunk)
        for module in tree(part)
    ]


def _parts(trunk: 'XCiTTrunk') -> list[nn.Module]:
    parts = map(trunk._modules.get, _PARTS)
    return [part for part in parts if part is not None]


# Settings that can change without changing any shape.
_CONVOLUTION = ('kernel_size', 'stride', 'padding', 'dilation', 'groups', 'padding_mode')
_SETTINGS = {
    nn.Conv2d: _CONVOLUTION,
    nn.ConvTranspose2d: _CONVOLUTION,
    # The last two are there only if somebody replaced the methods of this one module.
    XCA: ('num_heads', 'project', 'attention_map'),
    ClassAttention: ('num_heads', 'project', 'attention_map'),
    ClassAttentionLayer: ('tokens_norm',),
}
_PARTS = ('patch_embed', 'pos_embed', 'layers', 'pyramid', 'cls_layers')
_OVERRIDABLE = ('embed', 'run_layer', 'keep', 'finish', 'class_token')
# For each network, its parts and how their modules were when they were last found to be as built.
_CHECKED: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], Snapshot]] = WeakKeyDictionary()
_PACKAGE = __name__.partition('.fast')[0]
_METHODS = {
    (kind, name): method
    for kind in (
        *(ConvPatchEmbed, ConvNorm, SinusoidalPositionEncoding, XCiTLayer, XCA, LPI, FeedForward),
        *(ClassAttention, ClassAttentionLayer, Pyramid, DropPath),
    )
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and not name.startswith('__')
}


class _Fast(Execution):
    """Shares what is the same with and without autograd."""

    def finish(self, kept: list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(kept)

    def class_token(self, tokens: Tensor) -> Tensor:
        class_token = self.trunk.cls_token.expand(len(tokens), -1, -1)
        return gather_class_token(list(self.trunk.cls_layers), class_token, tokens)


class Differentiable(_Fast):
    """For autograd: keeps few activations, and gradients in the layout of the side they enter."""

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = embed_for_training(self.trunk.patch_embed, images)
        return add_positions(x, self.trunk.pos_embed, grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        trunk, layer = self.trunk, cast(XCiTLayer, self.trunk.layers[index])
        *scales, ffn_scale = path_scales(layer, x)
        if trunk.with_cp:
            if index % RELEASE_INTERVAL == 0:
                x = release(x)
            x = recomputed(layer, self._mix, layer, x, grid, *scales)
        else:
            x = self._mix(layer, x, grid, *scales)
        recompute = trunk.recompute_ffn or trunk.with_cp

        def add_ffn(x: Tensor, scale: Tensor | None) -> Tensor:
            return feed_forward_residual(x, layer.ffn, layer.norm2, layer.gamma2, scale, recompute)

        return over_kept_samples(add_ffn, x, ffn_scale)

    def _mix(
        self,
        layer: XCiTLayer,
        x: Tensor,
        grid: tuple[int, int],
        xca_scale: Tensor | None,
        lpi_scale: Tensor | None,
    ) -> Tensor:
        """Add the two branches in which tokens interact."""

        def add_xca(x: Tensor, scale: Tensor | None) -> Tensor:
            form = choose_form(self.trunk.attention, layer.xca, x)
            folded, gamma = split_layer_scale(layer.gamma1, x)
            return add_branch(x, scaled_xca(layer.norm1(x), layer.xca, folded, form), gamma, scale)

        x = over_kept_samples(add_xca, x, xca_scale)
        folded, gamma = split_layer_scale(layer.gamma3, x)
        branch = scaled_lpi(layer.norm3(x), layer.lpi, folded, grid)
        # For all samples: in training, its BatchNorm needs them.
        return add_branch(x, branch, gamma, lpi_scale)

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        feature = tokens_to_map(x, grid)
        if self.trunk.pyramid is not None:
            feature = rescale_for_training(self.trunk.pyramid.levels[level], feature)
        return feature.contiguous()


class Inference(_Fast):
    """Without autograd: in place, over pieces that fit the cache."""

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = embed_over_strips(self.trunk.patch_embed, images)
        return add_positions(x, self.trunk.pos_embed, grid), grid

    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        layer = cast(XCiTLayer, self.trunk.layers[index])
        form = choose_form(self.trunk.attention, layer.xca, x)
        add_xca(x, layer.xca, layer.norm1, layer.gamma1, form)
        add_lpi(x, layer.lpi, layer.norm3, layer.gamma3, grid)
        add_feed_forward(x, layer.ffn, layer.norm2, layer.gamma2)
        return x

    def keep(self, level: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        feature = tokens_to_map(x, grid)
        rescaled = feature
        if self.trunk.pyramid is not None:
            # Right away: the next layer overwrites the tokens, and only the rescaled level is kept.
            rescaled = rescale_over_strips(self.trunk.pyramid.levels[level], feature)
        if rescaled is feature:
            return feature.clone(memory_format=torch.contiguous_format)
        return rescaled.contiguous()
