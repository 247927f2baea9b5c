"""Maps that are computed where they are read: necks and heads over tiles, without seams.

A map knows its size and how to compute any window of itself from windows of the maps that it
depends on. Each step asks for the margin that it needs, and only the borders of the whole map are
padded. So a window has the same numbers as that part of the whole map.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ..models.pyramid import MaxPool
from .store import Rows
from .windows import Window, whole


class Map(ABC):
    """A feature map.

    Args:
        size (tuple[int, int]): Its height and width.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    @abstractmethod
    def read(self, window: Window) -> Tensor:
        """Return a window of the map, (1, C, height, width)."""

    def whole(self) -> Tensor:
        """Return all of it, (1, C, H, W)."""
        return self.read(whole(self.size))


class TensorMap(Map):
    """A part of a map that has been computed.

    Args:
        part (Tensor): (1, C, h, w).
        size (tuple[int, int], optional): Height and width of the whole map. Defaults to None:
            the part is all of it.
        origin (tuple[int, int]): Where the part begins. Defaults to (0, 0).
    """

    def __init__(
        self, part: Tensor, size: tuple[int, int] | None = None, origin: tuple[int, int] = (0, 0)
    ) -> None:
        height, width = part.shape[2:]
        super().__init__(size or (height, width))
        self.part = part
        self.window = Window(origin[0], origin[0] + height, origin[1], origin[1] + width)

    def read(self, window: Window) -> Tensor:
        rows, columns = window.within(self.window)
        return self.part[:, :, rows, columns]


class TokenMap(Map):
    """Tokens as a map.

    Args:
        rows (Rows): The tokens, in memory or in a file.
        device (torch.device): Where windows go.
    """

    def __init__(self, rows: Rows, device: torch.device) -> None:
        super().__init__((rows.shape[0], rows.shape[1]))
        self.rows = rows
        self.device = device

    def read(self, window: Window) -> Tensor:
        return self.rows.read(*window).to(self.device).permute(2, 0, 1)[None]


class PyramidLevel(Map):
    """A level of the pyramid, rescaled from tokens where it is read.

    Args:
        tokens (Map): The tokens, of stride ``patch_size``.
        modules (nn.Module): The level: transposed convolutions, nothing, or max-pooling.
    """

    def __init__(self, tokens: Map, modules: nn.Module) -> None:
        self.tokens = tokens
        self.modules = modules
        self.up, self.down = rescaling(modules)
        height, width = (max(n // self.down, 1) * self.up for n in tokens.size)
        super().__init__((height, width))

    def read(self, window: Window) -> Tensor:
        up, down = self.up, self.down
        height, width = self.tokens.size
        source = Window(
            window.top // up * down,
            min(-(-window.bottom // up) * down, height),
            window.left // up * down,
            min(-(-window.right // up) * down, width),
        )
        result = self.modules(self.tokens.read(source))
        rows, columns = window.within(Window(window.top // up * up, 0, window.left // up * up, 0))
        return result[:, :, rows, columns]


def rescaling(level: nn.Module) -> tuple[int, int]:
    """Return the factors by which a level of the pyramid enlarges and shrinks a map."""
    kinds = list(level.children())
    up = 2 ** sum(isinstance(kind, nn.ConvTranspose2d) for kind in kinds)
    return up, max((kind.stride for kind in kinds if isinstance(kind, MaxPool)), default=1)


class ConvMap(Map):
    """The output of a function of which each pixel depends on the pixels around it.

    Args:
        function (callable): Convolutions of stride 1 that keep the size, activations, BatchNorm in
            eval mode, sums, and the like.
        *sources (Map): Its inputs, of the same size.
        radius (int): How far it looks. Defaults to 0.
    """

    def __init__(self, function: Callable[..., Tensor], *sources: Map, radius: int = 0) -> None:
        super().__init__(sources[0].size)
        self.function = function
        self.sources = sources
        self.radius = radius

    def read(self, window: Window) -> Tensor:
        # A convolution pads the margin with zeros too. What that makes wrong is cut off again,
        # unless the margin is the border of the map, where the zeros belong.
        outer = window.grown(self.radius, self.size)
        rows, columns = window.within(outer)
        return self.function(*(each.read(outer) for each in self.sources))[:, :, rows, columns]


def concatenate(*parts: Tensor) -> Tensor:
    """Concatenate the channels of maps (1, C, H, W)."""
    return torch.cat(parts, dim=1)


class ResizedMap(Map):
    """A map resized as ``F.interpolate`` does, with the coordinates of the whole map.

    Args:
        source (Map): The input.
        size (tuple[int, int]): Height and width of the result.
        mode (str): ``bilinear`` or ``nearest``. Defaults to ``bilinear``.
        align_corners (bool): See ``F.interpolate``. Defaults to False.
    """

    def __init__(
        self,
        source: Map,
        size: tuple[int, int],
        mode: str = 'bilinear',
        align_corners: bool | None = False,
    ) -> None:
        super().__init__(size)
        if mode not in ('bilinear', 'nearest'):
            raise ValueError(f'mode must be bilinear or nearest, not {mode!r}')
        self.source = source
        self.mode = mode
        self.align_corners = bool(align_corners)

    def source_window(self, window: Window) -> Window:
        """Return the part of the source that a window depends on."""
        below, above, _ = self._axis(0, window.top, window.bottom)
        left, right, _ = self._axis(1, window.left, window.right)
        return Window(int(below[0]), int(above[-1]) + 1, int(left[0]), int(right[-1]) + 1)

    def read(self, window: Window) -> Tensor:
        if self.size == self.source.size:
            return self.source.read(window)
        outer = self.source_window(window)
        x = self.source.read(outer)
        below, above, weight = self._axis(0, window.top, window.bottom)
        left, right, share = self._axis(1, window.left, window.right)
        indices = (below - outer.top, above - outer.top, left - outer.left, right - outer.left)
        below, above, left, right = (index.to(x.device) for index in indices)
        # With the channels last, a pixel is one piece of memory.
        x = x.permute(0, 2, 3, 1).contiguous()
        if self.mode == 'nearest':
            return x[:, below][:, :, left].permute(0, 3, 1, 2)
        x = torch.lerp(x[:, :, left], x[:, :, right], share.to(x)[:, None])
        out = x.new_empty(1, window.size[0], *x.shape[2:])
        # Row by row, the processor's cache holds what is worked on.
        for i, (first, second, part) in enumerate(
            zip(below.tolist(), above.tolist(), weight.tolist(), strict=True)
        ):
            torch.lerp(x[:, first], x[:, second], part, out=out[:, i])
        return out.permute(0, 3, 1, 2)

    def _axis(self, axis: int, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return both neighbors of each pixel in the source, and the weight of the second.

        In float32, as torch computes them: far from the origin of a large map, more digits would
        give other weights.
        """
        length, total = self.source.size[axis], self.size[axis]
        position = torch.arange(start, stop, dtype=torch.float32)
        if self.mode == 'nearest':
            scale = torch.tensor(length, dtype=torch.float32) / total
            index = (position * scale).long().clamp(max=length - 1)
            return index, index, position
        if self.align_corners:
            scale = torch.tensor(length - 1, dtype=torch.float32) / max(total - 1, 1)
            position = position * scale
        else:
            scale = torch.tensor(length, dtype=torch.float32) / total
            position = ((position + 0.5) * scale - 0.5).clamp(min=0)
        index = position.long().clamp(max=length - 1)
        return index, (index + 1).clamp(max=length - 1), (position - index).clamp(0, 1)


def average_pooled(source: Map, scales: tuple[int, ...], rows: int) -> list[Tensor]:
    """Pool a map to several sizes by adaptive averages, from sums over strips.

    Args:
        source (Map): The map.
        scales (tuple[int]): Height and width of each result.
        rows (int): Rows of a strip.

    Returns:
        list[Tensor]: (1, C, scale, scale) for each scale.
    """
    height, width = source.size
    down = [_bins(height, scale) for scale in scales]
    across = [_bins(width, scale) for scale in scales]
    sums: list[Tensor | float] = [0.0] * len(scales)
    dtype = torch.float32
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        strip = source.read(Window(top, bottom, 0, width))
        dtype, strip = strip.dtype, strip.double()
        for i in range(len(scales)):
            columns = strip @ across[i].to(strip.device).T
            sums[i] = sums[i] + down[i][:, top:bottom].to(strip.device) @ columns
    return [cast(Tensor, total).to(dtype) for total in sums]


def _bins(length: int, count: int) -> Tensor:
    """Return the matrix (count, length) of averages of ``F.adaptive_avg_pool2d``."""
    weights = torch.zeros(count, length, dtype=torch.float64)
    for i in range(count):
        start, stop = i * length // count, -(-(i + 1) * length // count)
        weights[i, start:stop] = 1 / (stop - start)
    return weights
