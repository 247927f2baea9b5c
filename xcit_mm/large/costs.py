"""The cost model: what an image takes in compute, memory and exchanged bytes when it is spread."""

import math
from typing import NamedTuple

from .rows import HALO

FLOAT = 4


class LayerBytes(NamedTuple):
    """Bytes that one process hands to its peers in a layer, for one image.

    Args:
        first (int): The first token, which serves as the origin of the sums.
        sums (int): The sums over the tokens, which are added up over all processes.
        rows (int): Rows for its neighbors.
    """

    first: int
    sums: int
    rows: int


def layer_bytes(dims: int, width: int, neighbors: int = 2) -> LayerBytes:
    """What a process exchanges in a layer, forward, in float32. Backward takes as much again.

    Args:
        dims (int): Width d of the tokens.
        width (int): Width of the token grid.
        neighbors (int): Processes next to it: 2, or 1 at the ends.
    """
    return LayerBytes(
        dims * FLOAT, (dims + 1) ** 2 * FLOAT, neighbors * HALO * width * dims * FLOAT
    )


class Machines(NamedTuple):
    """What the projection assumes of the machines.

    Args:
        processes (int): Processes, one per GPU.
        products (float): Multiply-adds that one sustains per second.
        bandwidth (float): Bytes per second between two of them.
        latency (float): Seconds that a message takes at least.
    """

    processes: int
    products: float
    bandwidth: float
    latency: float


class Projection(NamedTuple):
    """What one image takes; all numbers are for one process.

    Args:
        compute (float): Seconds of products in the backbone, forward.
        exchange (float): Seconds of exchange between processes, forward.
        tokens (float): Bytes of its tokens.
        sent (float): Bytes that it hands to its peers in a layer.
        gathered (float): Bytes that it would receive in a layer if each process needed all tokens.
        training (float): Bytes of activations that training keeps.
    """

    compute: float
    exchange: float
    tokens: float
    sent: float
    gathered: float
    training: float


def trunk_products(dims: int, depth: int, patch_size: int, in_channels: int = 3) -> int:
    """Multiply-adds of stem and layers per token, in inference and in covariance form.

    Args:
        dims (int): Width d of the tokens.
        depth (int): Number of layers: each takes d² for the covariance, d² for the map, 8 d² for
            the feed-forward network and 18 d for the convolutions.
        patch_size (int): 8 or 16.
        in_channels (int): Channels of the image. Defaults to 3.
    """
    halvings = int(math.log2(patch_size))
    channels = [in_channels, *(dims >> i for i in reversed(range(halvings)))]
    stem = sum(
        9 * channels[i] * channels[i + 1] * (patch_size >> (i + 1)) ** 2 for i in range(halvings)
    )
    return stem + depth * (10 * dims**2 + 18 * dims)


# Activations that training keeps per layer, in units of N d floats, with a recomputed feed-forward
# network.
KEPT = 17


def project(
    dims: int, depth: int, patch_size: int, pixels: float, machines: Machines
) -> Projection:
    """What a square image takes on some machines.

    Args:
        dims (int): Width d of the tokens.
        depth (int): Number of layers.
        patch_size (int): 8 or 16.
        pixels (float): Pixels of the image.
        machines (Machines): The machines.
    """
    tokens = pixels / patch_size**2
    own, width = tokens / machines.processes, math.sqrt(tokens)
    first, sums, rows = layer_bytes(dims, round(width))
    # A ring adds up in two rounds; each of its steps is a message.
    ring = 2 * (machines.processes - 1) / machines.processes * sums / machines.bandwidth
    steps = 2 * math.ceil(math.log2(machines.processes)) + 2
    per_layer = ring + (rows + first) / machines.bandwidth + steps * machines.latency
    return Projection(
        compute=own * trunk_products(dims, depth, patch_size) / machines.products,
        exchange=depth * per_layer,
        tokens=own * dims * FLOAT,
        sent=first + sums + rows,
        gathered=(tokens - own) * dims * FLOAT,
        training=own * dims * FLOAT * KEPT * depth,
    )
