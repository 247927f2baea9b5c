"""Query and key magnitude (the paper's last figure).

With queries and keys L2-normalized over the tokens, as in :class:`xcit_mm.models.layers.XCA`, the
norm of a token's query or key within a head says how much the token counts in the cross-covariance:

    ‖q̂_n‖² = Σ_i q_ni² / |q_i|²,    |q_i|² = Σ_n q_ni² = (W̄q S W̄qᵀ)_ii

Its squares add up to d/h over the tokens in every head and layer, so one color scale serves all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from ..models.fast import StatisticsSum, query_key_norms, token_chunks
from ..models.layers import XCiTLayer
from ..models.trunk import XCiTTrunk
from .drawing import HeatMaps
from .images import Normalize, Preprocess
from .observe import Picture, choose_layers, run_picture

COLUMNS = 6


def query_key_magnitude(
    backbone: XCiTTrunk,
    image: np.ndarray,
    layers: Sequence[int] | None = None,
    per_head: bool = False,
    preprocess: Preprocess = Normalize(),  # noqa: B008  it never changes
    figure: bool = False,
) -> Any:
    """Return the norm of each token's L2-normalized query and key, as heat maps over the image.

    Args:
        backbone (XCiTTrunk): An ``XCiT`` or ``XCiTClassifier``.
        image (np.ndarray): See :func:`as_rgb`.
        layers (Sequence[int], optional): Layers, counted from 1. Defaults to None, all.
        per_head (bool): Whether to keep heads separate, not average them. Defaults to False.
        preprocess (callable): RGB image to tensor. Defaults to ImageNet's mean and deviation.
        figure (bool): Whether to return the figure as well. Defaults to False.

    Returns:
        np.ndarray or tuple[np.ndarray, Figure]: (layers, 2, H, W), or (layers, 2, heads, H, W);
        queries come first, then keys.
    """
    return run_picture(QueryKeyMagnitude(backbone, layers, per_head), image, preprocess, figure)


def magnitude_of_layer(layer: XCiTLayer, tokens: Tensor) -> Tensor:
    """Return the norms of the normalized queries and keys of one layer, (2, h, N).

    Queries and keys are computed for one chunk of tokens at a time.

    Args:
        layer (XCiTLayer): The layer.
        tokens (Tensor): Its input, (1, N, d).
    """
    xca, dims = layer.xca, layer.xca.embed_dims
    S, shifted_bias = StatisticsSum(xca, layer.norm1).add(tokens).result()
    norms = query_key_norms(xca, S, shifted_bias)[0]
    weight = xca.qkv.weight[: 2 * dims]
    bias = None if xca.qkv.bias is None else xca.qkv.bias[: 2 * dims]
    magnitude = norms.new_empty(tokens.shape[1], 2, xca.num_heads)
    for chunk in token_chunks(tokens[0], 2 * dims):
        queries_keys = F.linear(layer.norm1(tokens[0, chunk]), weight, bias) / norms
        magnitude[chunk] = queries_keys.unflatten(1, (2, xca.num_heads, -1)).norm(dim=-1)
    return magnitude.permute(1, 2, 0)


class QueryKeyMagnitude(Picture):
    """The picture; see :func:`query_key_magnitude`."""

    def __init__(
        self, backbone: XCiTTrunk, layers: Sequence[int] | None = None, per_head: bool = False
    ) -> None:
        self.backbone = backbone
        self.layers = choose_layers(backbone, layers)
        self.per_head = per_head
        self.maps: dict[int, np.ndarray] = {}

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        if depth in self.layers:
            layer: Any = self.backbone.layers[depth]
            maps = magnitude_of_layer(layer, tokens).unflatten(2, grid)
            self.maps[depth] = (maps if self.per_head else maps.mean(1)).cpu().numpy()

    def result(self) -> np.ndarray:
        return np.stack([self.maps[layer] for layer in self.layers])

    def heat_maps(self) -> HeatMaps:
        maps = self.result()
        rows = {'queries': maps[:, 0], 'keys': maps[:, 1]}
        if self.per_head:
            rows = {
                f'{name}, head {head + 1}': values[:, head]
                for name, values in rows.items()
                for head in range(values.shape[1])
            }
        return HeatMaps(
            f'Query and key magnitude, {"per head" if self.per_head else "averaged over heads"}',
            [f'layer {layer + 1}' for layer in self.layers],
            {label: list(values) for label, values in rows.items()},
            COLUMNS,
            self.backbone.patch_size,
            r'$\|\hat{q}\|,\ \|\hat{k}\|$',
        )
