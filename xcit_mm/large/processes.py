"""One image over many processes: each has some rows of the token grid.

A layer exchanges the sums from which its attention follows, (d + 1)² numbers, and two rows of
neighbors; BatchNorm in training exchanges its own sums. Nothing else leaves a process.
"""

import itertools
import math
from typing import Any, cast

import torch
from mmengine.registry import DATA_SAMPLERS, MODELS
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from ..engine.randomness import SeededDefaultSampler, SeededInfiniteSampler
from ..models import XCiT
from ..models.fast import (
    HALO,
    StemRows,
    add_branch,
    add_positions,
    covariance_xca,
    feed_forward_residual,
    is_batch_norm,
    map_to_tokens,
    path_scales,
    split_layer_scale,
    tokens_to_map,
)
from ..models.layers import LPI, XCiTLayer
from .collectives import RowGroup, check_sharing
from .maps import rescaling


def split_rows(height: int, parts: int, unit: int) -> list[tuple[int, int]]:
    """Return the first and the last row, exclusive, of each process.

    Args:
        height (int): Rows of the grid.
        parts (int): Number of processes.
        unit (int): What the first rows are multiples of, so that no window of the pyramid's
            max-pooling is split.
    """
    units = -(-height // unit)
    if units < parts:
        raise ValueError(
            f'{height} rows of tokens are too few for {parts} processes: each needs {unit}. Use '
            'fewer processes per image, or larger images.'
        )
    bounds = [min(units * i // parts * unit, height) for i in range(parts + 1)]
    return list(itertools.pairwise(bounds))


class SpreadBackbone:
    """Runs a backbone over an image whose rows are spread over the processes of a group.

    All processes must have the same weights. In training, add up or average the gradients of the
    parameters, as DistributedDataParallel does; see :mod:`xcit_mm.large.collectives`.

    Args:
        backbone (XCiT): The backbone, which stays as it is.
        group (ProcessGroup, optional): The processes. Defaults to None: all of them.
    """

    def __init__(self, backbone: XCiT, group: ProcessGroup | None = None) -> None:
        self.backbone = backbone
        self.group = RowGroup(group)
        strides = backbone.pyramid.strides if backbone.pyramid is not None else ()
        self.unit = max(HALO, *(stride // backbone.patch_size for stride in strides), 0)

    def rows(self, height: int) -> list[tuple[int, int]]:
        """Return the rows of the token grid of each process, for images of this height."""
        return split_rows(self._stem(height).num_rows, self.group.size, self.unit)

    def pixel_rows(self, height: int) -> tuple[int, int]:
        """Return the rows of images of this height that this process must have."""
        return self._stem(height).pixels(*self.rows(height)[self.group.rank])

    def _stem(self, height: int) -> StemRows:
        return StemRows(self.backbone.patch_embed, height, self._batch_norm)

    def __call__(self, pixels: Tensor, height: int, gather: bool = True) -> tuple[Tensor, ...]:
        """Extract features.

        Args:
            pixels (Tensor): The rows :meth:`pixel_rows` of the images, (B, C, rows, W).
            height (int): Height of the images.
            gather (bool): Whether each process gets all rows of the levels, or only its own.
                Defaults to True.
        """
        backbone, parts = self.backbone, self.rows(height)
        start, stop = parts[self.group.rank]
        # What the process below has, as far as it is needed.
        below = parts[self.group.rank + 1] if self.group.rank + 1 < len(parts) else (0, 0)
        num_below = min(below[1] - below[0], HALO)
        x = self._stem(height)(pixels, start, stop)
        grid = (stop - start, x.shape[3])
        whole_grid = (parts[-1][1], x.shape[3])
        x = add_positions(map_to_tokens(x), backbone.pos_embed, whole_grid, start, stop)
        levels: list[Tensor] = []
        for index, layer in enumerate(cast(list[XCiTLayer], list(backbone.layers))):
            x = self._run_layer(layer, x, grid, num_below)
            if index in backbone.out_indices:
                feature = tokens_to_map(x, grid)
                levels.append(self._level(len(levels), feature, parts, gather))
        return tuple(levels)

    def _run_layer(
        self, layer: XCiTLayer, x: Tensor, grid: tuple[int, int], num_below: int
    ) -> Tensor:
        backbone = self.backbone
        tokens = layer.norm1(x)
        # The image's first token is the origin in all processes.
        origin = self.group.first(tokens[:, :1])
        folded, gamma = split_layer_scale(layer.gamma1, x)
        branch = covariance_xca(tokens, layer.xca, folded, origin, self.group.sum)
        xca_scale, lpi_scale, ffn_scale = self._path_scales(layer, x)
        x = add_branch(x, branch, gamma, xca_scale)
        branch = self._lpi(layer.norm3(x).unflatten(1, grid), layer.lpi, num_below)
        x = add_branch(x, branch, layer.gamma3, lpi_scale)
        recompute = backbone.recompute_ffn or backbone.with_cp
        return feed_forward_residual(x, layer.ffn, layer.norm2, layer.gamma2, ffn_scale, recompute)

    def _lpi(self, rows: Tensor, lpi: LPI, num_below: int) -> Tensor:
        """Return ``LPI(x)`` of normalized rows (B, n, W, d), as tokens."""
        above, below = self.group.neighbors(rows, num_below)
        x = torch.cat([above, rows, below], dim=1).permute(0, 3, 1, 2)
        count = rows.shape[1]
        # After the first convolution, only the nearest row on either side is needed, and right.
        top, bottom = min(above.shape[1], 1), min(below.shape[1], 1)
        first = above.shape[1] - top
        x = F.gelu(lpi.conv1(x)[:, :, first : first + top + count + bottom])
        x = lpi.conv2(self._batch_norm(lpi.norm, x, top, top + count))
        return x[:, :, top : top + count].flatten(2).transpose(1, 2)

    def _batch_norm(self, norm: Any, x: Tensor, first: int, last: int) -> Tensor:
        """Normalize a map (B, C, h, W) by the statistics of the rows of all processes.

        Args:
            norm (nn.Module): The layer.
            x (Tensor): The map.
            first (int): The first row that is this process's own.
            last (int): The last one, exclusive: each row must count once.
        """
        if not is_batch_norm(norm) or not (norm.training or norm.running_var is None):
            return norm(x)
        own = x[:, :, first:last]
        count = own.numel() // own.shape[1]
        var, mean = torch.var_mean(own, dim=(0, 2, 3), correction=0)
        var, mean = var.double(), mean.double()
        sums = torch.cat([mean * count, (var + mean**2) * count, mean.new_tensor([count])])
        mean, square, total = self.group.sum(sums).split([len(mean), len(mean), 1])
        mean = mean / total
        var = square / total - mean**2
        _update_running_statistics(norm, mean.detach(), var.detach(), float(total.detach()))
        scale = torch.rsqrt(var + norm.eps).to(x.dtype)
        weight = scale if norm.weight is None else scale * norm.weight
        x = (x - mean.to(x.dtype)[:, None, None]) * weight[:, None, None]
        return x if norm.bias is None else x + norm.bias[:, None, None]

    def _level(
        self, index: int, feature: Tensor, parts: list[tuple[int, int]], gather: bool
    ) -> Tensor:
        """Return a level of the pyramid, from this process's rows of the tokens."""
        pyramid = self.backbone.pyramid
        level = nn.Sequential() if pyramid is None else pyramid.levels[index]
        for module in level.children():
            if is_batch_norm(module):
                feature = self._batch_norm(module, feature, 0, feature.shape[2])
            else:
                feature = module(feature)
        up, down = rescaling(level)
        # Max-pooling drops rows that do not fill a window, unless the whole map is smaller than it.
        heights = [(stop // down - start // down) * up for start, stop in parts]
        heights[0] = max(heights[0], up)
        feature = feature[:, :, : heights[self.group.rank]].contiguous()
        return self.group.gather(feature, heights) if gather else feature

    def _path_scales(self, layer: XCiTLayer, x: Tensor) -> list[Tensor | None]:
        """Draw the factors of stochastic depth, the same in all processes."""
        scales = path_scales(layer, x)
        return [None if scale is None else self.group.first(scale) for scale in scales]


@torch.no_grad()
def _update_running_statistics(norm: Any, mean: Tensor, var: Tensor, count: float) -> None:
    """Move the running statistics of a BatchNorm as it would itself."""
    if norm.running_mean is None:
        return
    norm.num_batches_tracked.add_(1)
    factor = norm.momentum
    if factor is None:
        factor = 1 / float(norm.num_batches_tracked)
    unbiased = var * count / max(count - 1, 1)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), factor)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), factor)


@MODELS.register_module()
class SpreadXCiT(XCiT):
    """XCiT with every image spread over several processes, for images too large for one.

    The levels are gathered, so neck and head run as usual, on all rows in every process. The
    processes that share an image must be given the same batch. In eval mode, each process runs its
    images alone, so that validation needs nothing else: inference takes a fraction of the memory.
    To spread inference, use :class:`SpreadBackbone`.

    Args:
        *args: Those of :class:`XCiT`.
        processes (int, optional): Number of processes that share an image: ranks 0 to n - 1, n to
            2 n - 1, and so on. Defaults to None: all of them.
        **kwargs: Those of :class:`XCiT`.
    """

    def __init__(self, *args: Any, processes: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.processes = processes
        self._spread: list[SpreadBackbone] = []  # in a list: not a part of the network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Extract features from images (B, C, H, W), the same in all processes that share them."""
        if not (self.training and distributed.is_initialized()):
            return super().forward(images)
        self._check_images(images)
        if not self._spread:
            self._spread.append(SpreadBackbone(self, self._own_group()))
        spread, height = self._spread[0], images.shape[2]
        low, high = spread.pixel_rows(height)
        return spread(images[:, :, low:high], height)

    def _own_group(self) -> ProcessGroup:
        """Return the group of this process; every process creates all of them.

        A new one even for all processes: DistributedDataParallel adds up gradients in the old one
        at the same time.
        """
        world = distributed.get_world_size()
        size = self.processes or world
        check_sharing(world, size)
        groups = [
            distributed.new_group(list(range(first, first + size)))
            for first in range(0, world, size)
        ]
        return groups[distributed.get_rank() // size]


def _share(sampler: Any, processes: int) -> None:
    """Let a sampler count groups of processes: all of a group get the same samples and seeds."""
    check_sharing(sampler.world_size, processes)
    sampler.rank //= processes
    sampler.world_size //= processes


@DATA_SAMPLERS.register_module()
class SharedDefaultSampler(SeededDefaultSampler):
    """``SeededDefaultSampler`` with the same samples for all processes that share images.

    Args:
        *args: Those of mmengine's ``DefaultSampler``.
        processes (int): Number of processes that share an image, as in ``SpreadXCiT``.
        **kwargs: Those of mmengine's ``DefaultSampler``.
    """

    def __init__(self, *args: Any, processes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _share(self, processes)
        length = len(self.dataset)
        if self.round_up:
            self.num_samples = math.ceil(length / self.world_size)
            self.total_size = self.num_samples * self.world_size
        else:
            self.num_samples = math.ceil((length - self.rank) / self.world_size)
            self.total_size = length


@DATA_SAMPLERS.register_module()
class SharedInfiniteSampler(SeededInfiniteSampler):
    """``SeededInfiniteSampler`` with the same samples for all processes that share images.

    Args:
        *args: Those of mmengine's ``InfiniteSampler``.
        processes (int): Number of processes that share an image, as in ``SpreadXCiT``.
        **kwargs: Those of mmengine's ``InfiniteSampler``.
    """

    def __init__(self, *args: Any, processes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _share(self, processes)
        self.indices = self._indices_of_rank()
