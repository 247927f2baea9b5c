"""Which layers to draw."""

from collections.abc import Sequence

from ..models.trunk import XCiTTrunk


def choose_layers(backbone: XCiTTrunk, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return layers counted from 0; None means all.

    Args:
        backbone (XCiTTrunk): The network.
        layers (Sequence[int], optional): Layers counted from 1, as the paper does.
    """
    depth = len(backbone.layers)
    wanted = range(1, depth + 1) if layers is None else sorted(set(layers))
    if not wanted or not all(isinstance(i, int) and 1 <= i <= depth for i in wanted):
        raise ValueError(f'layers must be in 1...{depth}, not {layers}')
    return tuple(i - 1 for i in wanted)


def spread(depth: int, count: int) -> list[int]:
    """Spread up to ``count`` layers, counted from 1, evenly over the depth, including the last.

    Examples:
        >>> spread(12, 6)
        [2, 4, 6, 8, 10, 12]
    """
    return sorted({round(depth * i / count) or 1 for i in range(1, count + 1)})
