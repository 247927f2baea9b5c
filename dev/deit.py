"""DeiT with other attention in place of its own, as in the paper's appendix, and other timm models.

Importing this registers ``TimmClassifier`` for the configs in ``dev/configs``. The class token is
the first token. It takes part in every attention: what that means where the paper is silent stands
with each of them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from xcit_mm.pretraining.transforms import import_timm

Grid = tuple[int, int]


class FullAttention(nn.Module):
    """DeiT's own attention between all tokens, with timm's names.

    Args:
        dim (int): Width d of the tokens.
        num_heads (int): Number of heads h.
        grid (tuple[int, int]): Rows and columns of patches. Images may have other square grids.
    """

    def __init__(self, dim: int, num_heads: int, grid: Grid) -> None:
        super().__init__()
        self.num_heads, self.grid = num_heads, grid
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        """Attend over tokens (B, N, d); timm also passes masks, which classifiers do not use."""
        d, heads, grid = x.shape[-1], self.num_heads, self.grid_of(x)
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(x, weight[:d], bias[:d]).unflatten(-1, (heads, -1)).transpose(1, 2)
        kv = F.linear(self.reduce(x, grid), weight[d:], bias[d:]).unflatten(-1, (2, heads, -1))
        k, v = kv.permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v, grid).transpose(1, 2).flatten(2))

    def grid_of(self, x: Tensor) -> Grid:
        """Return the grid of patches of tokens (B, N, d)."""
        patches = x.shape[1] - 1
        if patches == math.prod(self.grid):
            return self.grid
        side = math.isqrt(patches)
        if side * side != patches:
            raise ValueError(f'{patches} patches are neither {self.grid} nor a square')
        return side, side

    def reduce(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the tokens (B, M, d) that keys and values are made of."""
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Return what queries (B, h, N, d/h) get from keys and values (B, h, M, d/h)."""
        return F.scaled_dot_product_attention(q, k, v)


class SpatialReductionAttention(FullAttention):
    """SRA of PVT: keys and values come from a coarser grid, and from the class token.

    Args:
        dim (int): Width d of the tokens.
        num_heads (int): Number of heads h.
        grid (tuple[int, int]): Rows and columns of patches.
        reduction (str): ``pool`` for an average, ``conv`` for a convolution.
        ratio (int): How much coarser each side is; 1 is full attention. Defaults to 2: the paper
            does not say.
    """

    def __init__(
        self, dim: int, num_heads: int, grid: Grid, reduction: str = 'pool', ratio: int = 2
    ) -> None:
        super().__init__(dim, num_heads, grid)
        self.ratio = ratio
        if ratio > 1:
            is_conv = reduction == 'conv'
            self.reduction = nn.Conv2d(dim, dim, ratio, ratio) if is_conv else nn.AvgPool2d(ratio)
            self.norm = nn.LayerNorm(dim)

    def reduce(self, x: Tensor, grid: Grid) -> Tensor:
        if self.ratio == 1:
            return x
        coarse = self.reduction(x[:, 1:].mT.unflatten(-1, grid))
        return torch.cat([x[:, :1], self.norm(coarse.flatten(2).mT)], dim=1)


class LinformerAttention(FullAttention):
    """Linformer: learned maps, shared by the heads, make few keys and values of all tokens.

    Args:
        dim (int): Width d of the tokens.
        num_heads (int): Number of heads h.
        grid (tuple[int, int]): Rows and columns of patches, the same for all images.
        length (int, optional): Number of keys k. Defaults to None, the square root of the number
            of patches.
    """

    def __init__(self, dim: int, num_heads: int, grid: Grid, length: int | None = None) -> None:
        super().__init__(dim, num_heads, grid)
        length = length or round(math.sqrt(math.prod(grid)))
        self.key_map = nn.Linear(math.prod(grid) + 1, length, bias=False)
        self.value_map = nn.Linear(math.prod(grid) + 1, length, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        if grid != self.grid:
            raise ValueError(
                f'Linformer has weights for a grid of {self.grid} patches, and the image has '
                f'{grid}: test it at the size that it was trained at'
            )
        return F.scaled_dot_product_attention(q, self.key_map(k.mT).mT, self.value_map(v.mT).mT)


class EfficientAttention(FullAttention):
    """Efficient attention: softmax of queries over channels and of keys over tokens."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        return q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)


class AxialAttention(FullAttention):
    """Axial attention: over the rows, then over the columns of what that gave.

    Both use the same queries and keys. The class token is part of every row and attends to all
    tokens.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        first = F.scaled_dot_product_attention(q[:, :, :1], k, v)
        rows, keys, values = (x[:, :, 1:].unflatten(2, grid) for x in (q, k, v))
        shared_k, shared_v = (
            x[:, :, :1].unsqueeze(2).expand(-1, -1, grid[0], -1, -1) for x in (k, v)
        )
        x = F.scaled_dot_product_attention(
            rows, torch.cat([shared_k, keys], dim=3), torch.cat([shared_v, values], dim=3)
        )
        columns, keys, x = (each.transpose(2, 3) for each in (rows, keys, x))
        x = F.scaled_dot_product_attention(columns, keys, x).transpose(2, 3)
        return torch.cat([first, x.flatten(2, 3)], dim=2)


ATTENTIONS: dict[str, Callable[[int, int, Grid], nn.Module]] = {
    'full': FullAttention,
    'sra_pool': partial(SpatialReductionAttention, reduction='pool'),
    'sra_conv': partial(SpatialReductionAttention, reduction='conv'),
    'linformer': LinformerAttention,
    'efficient': EfficientAttention,
    'axial': AxialAttention,
}


@MODELS.register_module(name='TimmClassifier')
def build_timm_classifier(name: str, attention: str | None = None, **options: Any) -> nn.Module:
    """Build a classifier of timm, without weights.

    Args:
        name (str): Its name in timm, such as ``deit_small_patch16_224``.
        attention (str, optional): For a DeiT: a name of :data:`ATTENTIONS`. Defaults to None,
            timm's own.
        **options: As for ``timm.create_model``. With ``dynamic_img_size=True``, a DeiT takes images
            of any size and interpolates its positions.
    """
    model: Any = import_timm('timm').create_model(name, pretrained=False, **options)
    if attention is None:
        return model
    if attention not in ATTENTIONS:
        raise ValueError(f'attention must be one of {", ".join(ATTENTIONS)}, not {attention!r}')
    for block in model.blocks:
        heads, grid = block.attn.num_heads, tuple(model.patch_embed.grid_size)
        block.attn = ATTENTIONS[attention](model.embed_dim, heads, grid)
    # As timm does for its own layers.
    model.init_weights()
    return model


def count_flops(model: nn.Module, *size: int) -> int:
    """Count the multiply-adds of the products for an input of a size, as papers do.

    Args:
        model (nn.Module): Any module on the device ``meta``, where attention is plain products.
        *size (int): Shape of its input.
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model.eval()(torch.empty(*size, device='meta'))
    return counter.get_total_flops() // 2
