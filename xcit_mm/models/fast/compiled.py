"""Runs the layers compiled by ``torch.compile``, at any image size and batch.

All layers share one graph, compiled once for batches of one and once for all others. Compiled as a
whole, the network fails as soon as the image size changes: Inductor cannot sort the symbolic
strides of the maps around a convolution (pytorch issues 172204 and 185510). So the graph has no
maps, only tokens: the depth-wise convolutions are an operator of our own, and stem and pyramid run
as without the compiler. Around a SyncBatchNorm that waits for other processes, a layer has two
graphs.

This module is imported only when it is needed: torch's compiler takes seconds to import.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..layers import XCiTLayer
from .execution import Differentiable, Execution, Inference, choose_execution
from .layout import map_to_tokens, tokens_to_map
from .operators import cast_all
from .precision import autocast_dtype
from .residual import add_branch, path_scales
from .xca import attend_tokens, choose_form, covariance_xca

if TYPE_CHECKING:
    from ..trunk import XCiTTrunk

# With and without autograd, autocast and stochastic depth; batches of one, and others; two forms of
# attention; frozen layers. By default torch gives up after eight.
MAX_GRAPHS = 64
# Of a product: weight and bias, which may be None.
Weights = tuple[Tensor, Any]


REASON: dict[str, Any] = dict(
    reason='XCiT compiles its layers itself, as one graph for all image sizes. For a single graph '
    'of the whole network and one image size, build it with fast=False.',
)
if 'reason' not in inspect.signature(torch.compiler.disable).parameters:  # an old torch
    REASON = {}


@functools.partial(torch.compiler.disable, **REASON)  # type: ignore[call-arg]
def run_in_regions(trunk: 'XCiTTrunk', images: Tensor) -> Any:
    """Run a network that a user compiles: outside of the user's graph, with compiled layers."""
    return trunk.run(images, choose_execution(trunk, images, compiled=True))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    settings: dict[str, Any] = {}
    if 'recompile_limit' in inspect.signature(torch.compile).parameters:
        settings['recompile_limit'] = MAX_GRAPHS
    return torch.compile(function, dynamic=True, **settings)


class _CompiledLayers(Execution):
    def run_layer(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        trunk, layer = self.trunk, cast(XCiTLayer, self.trunk.layers[index])
        norm = layer.lpi.norm
        if synchronizes(norm) and trunk.with_cp:
            return super().run_layer(index, x, grid)  # what is recomputed contains BatchNorm
        # The choice and the draws are made here, so that the graph contains neither.
        form = choose_form(trunk.attention, layer.xca, x)
        scales = path_scales(layer, x)
        recompute = (trunk.with_cp, trunk.recompute_ffn or trunk.with_cp)
        if not synchronizes(norm):
            return _compiled(run_layer)(layer, x, *grid, form, scales, recompute)
        # A graph cannot wait for other processes, so BatchNorm runs between two of them.
        x, hidden = _compiled(begin_layer)(layer, x, *grid, form, scales[0])
        normed = _normalize(norm, hidden)
        return _compiled(end_layer)(layer, x, normed, *grid, scales[1:], recompute[1])


class CompiledDifferentiable(_CompiledLayers, Differentiable):
    """For autograd, with compiled layers."""


class CompiledInference(_CompiledLayers, Inference):
    """Without autograd, with compiled layers."""


def run_layer(
    layer: XCiTLayer,
    x: Tensor,
    height: int,
    width: int,
    form: str,
    scales: Sequence[Tensor | None],
    recompute: tuple[bool, bool],
) -> Tensor:
    """Run tokens through a layer; this is what is compiled.

    Args:
        layer (XCiTLayer): The layer.
        x (Tensor): Tokens (B, N, d).
        height (int): Height of their grid.
        width (int): Width of their grid.
        form (str): ``token`` or ``covariance``.
        scales (Sequence[Tensor]): For each branch, the factors of stochastic depth (B, 1, 1), or
            None.
        recompute (tuple[bool, bool]): Whether backward recomputes the two branches in which tokens
            interact, and the feed-forward branch.
    """
    lpi, ffn = layer.lpi, layer.ffn
    products = [lpi.conv1, lpi.conv2, ffn.fc1, ffn.fc2, *_attention_products(layer, form)]
    conv1, conv2, fc1, fc2, *qkv_proj = product_weights(x, products)

    def attend(x: Tensor) -> Tensor:
        return _attend(layer, x, form, qkv_proj)

    def interact(x: Tensor) -> Tensor:
        hidden = F.gelu(_convolve(layer.norm3(x), conv1, height, width))
        return _convolve(_normalize(lpi.norm, hidden), conv2, height, width)

    def feed_forward(x: Tensor) -> Tensor:
        return _feed_forward(layer, x, fc1, fc2)

    mixing, last = recompute
    gammas = (layer.gamma1, layer.gamma3, layer.gamma2)
    for branch, again, gamma, scale in zip(
        (attend, interact, feed_forward), (mixing, mixing, last), gammas, scales, strict=True
    ):
        x = add_branch(x, _run_branch(branch, x, again), gamma, scale)
    return x


def begin_layer(
    layer: XCiTLayer, x: Tensor, height: int, width: int, form: str, scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run a layer up to the BatchNorm of local interaction; see :func:`run_layer`.

    Returns:
        tuple[Tensor, Tensor]: The tokens after attention, and what BatchNorm takes (B, N, d).
    """
    products = [layer.lpi.conv1, *_attention_products(layer, form)]
    conv1, *qkv_proj = product_weights(x, products)
    x = add_branch(x, _attend(layer, x, form, qkv_proj), layer.gamma1, scale)
    return x, F.gelu(_convolve(layer.norm3(x), conv1, height, width))


def end_layer(
    layer: XCiTLayer,
    x: Tensor,
    normed: Tensor,
    height: int,
    width: int,
    scales: Sequence[Tensor | None],
    recompute: bool,
) -> Tensor:
    """Run the rest of a layer, after BatchNorm; see :func:`run_layer`."""
    ffn = layer.ffn
    conv2, fc1, fc2 = product_weights(x, [layer.lpi.conv2, ffn.fc1, ffn.fc2])

    def feed_forward(x: Tensor) -> Tensor:
        return _feed_forward(layer, x, fc1, fc2)

    x = add_branch(x, _convolve(normed, conv2, height, width), layer.gamma3, scales[0])
    return add_branch(x, _run_branch(feed_forward, x, recompute), layer.gamma2, scales[1])


def _run_branch(branch: Callable[[Tensor], Tensor], x: Tensor, recompute: bool) -> Tensor:
    # Inside a graph, recomputation leaves the running statistics of BatchNorm alone.
    return checkpoint(branch, x, use_reentrant=False) if recompute else branch(x)


def _attention_products(layer: XCiTLayer, form: str) -> list[nn.Module]:
    # The covariance form multiplies these two in float32.
    return [layer.xca.qkv, layer.xca.proj] if form == 'token' else []


def _attend(layer: XCiTLayer, x: Tensor, form: str, qkv_proj: Sequence[Weights]) -> Tensor:
    tokens = layer.norm1(x)
    if form == 'token':
        qkv, proj = qkv_proj
        return _linear(attend_tokens(_linear(tokens, *qkv), layer.xca), *proj)
    # Normalized on its own, so that LayerNorm and the shift of the origin are one kernel.
    origin = layer.norm1(x[:, :1]).detach()
    return covariance_xca(tokens, layer.xca, None, origin)


def _normalize(norm: nn.Module, hidden: Tensor) -> Tensor:
    # BatchNorm sees each token as an image of one pixel: its statistics are over all of them.
    return norm(hidden.view(-1, hidden.shape[2], 1, 1)).view_as(hidden)


def _feed_forward(layer: XCiTLayer, x: Tensor, fc1: Weights, fc2: Weights) -> Tensor:
    return _linear(F.gelu(_linear(layer.norm2(x), *fc1)), *fc2)


def synchronizes(norm: nn.Module) -> bool:
    """Return whether a norm layer exchanges statistics with other processes."""
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training):
        return False
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def product_weights(x: Tensor, layers: Sequence[Any]) -> list[Weights]:
    """Return weight and bias of each layer, in the type in which autocast multiplies tokens x."""
    dtype = autocast_dtype(x)
    if dtype is None:
        return [(layer.weight, layer.bias) for layer in layers]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    halves = iter(cast_together(parameters, dtype))
    return [(next(halves), None if layer.bias is None else next(halves)) for layer in layers]


def _linear(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(tokens.to(weight.dtype), weight, bias)


def _convolve(tokens: Tensor, weights: Weights, height: int, width: int) -> Tensor:
    weight, bias = weights
    return depthwise_conv(tokens.to(weight.dtype), weight, bias, height, width)


# The operators. Inductor calls them as they are, without looking inside.


@torch.library.custom_op(
    'xcit_mm::cast_together',
    mutates_args=(),
    schema='(Tensor[] tensors, ScalarType dtype) -> Tensor[]',
)
def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors in another type: on a GPU, by one kernel instead of one for each."""
    return cast_all(tensors, dtype)


@cast_together.register_fake
def _(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


def _keep_dtype(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
    ctx.dtype = inputs[0][0].dtype


def _cast_back(ctx: Any, grads: Sequence[Tensor]) -> tuple[list[Tensor], None]:
    return cast_together(grads, ctx.dtype), None


cast_together.register_autograd(_cast_back, setup_context=_keep_dtype)


@torch.library.custom_op('xcit_mm::depthwise_conv', mutates_args=())
def depthwise_conv(tokens: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """Convolve tokens (B, N, d) over their grid, each channel with a 3x3 kernel of its own."""
    x = tokens_to_map(tokens, (height, width))
    return map_to_tokens(F.conv2d(x, weight, bias, padding=1, groups=len(weight)))


@torch.library.custom_op('xcit_mm::depthwise_conv_backward', mutates_args=())
def depthwise_conv_backward(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to tokens, weight and bias."""
    grad_map, x = (tokens_to_map(each, (height, width)) for each in (grad, tokens))
    one, groups = [1, 1], len(weight)
    of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(
        grad_map, x, weight, [groups], one, one, one, False, [0, 0], groups, [True, True, True]
    )
    return map_to_tokens(of_x), of_weight.contiguous(), of_bias


@depthwise_conv.register_fake
def _(tokens: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    return torch.empty_like(tokens, memory_format=torch.contiguous_format)


@depthwise_conv_backward.register_fake
def _(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    layout = torch.contiguous_format
    of_tokens = torch.empty_like(tokens, memory_format=layout)
    of_weight = torch.empty_like(weight, memory_format=layout)
    return of_tokens, of_weight, weight.new_empty(len(weight))


def _keep_inputs(ctx: Any, inputs: tuple, output: Tensor) -> None:
    tokens, weight, _, ctx.height, ctx.width = inputs
    ctx.save_for_backward(tokens, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = depthwise_conv_backward(grad, *ctx.saved_tensors, ctx.height, ctx.width)
    return *grads, None, None


depthwise_conv.register_autograd(_backward, setup_context=_keep_inputs)
