"""Random backbones, images and settings for the property tests."""

import functools
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from xcit_mm.models import XCiT
from xcit_mm.models.fast import chunks
from xcit_mm.models.pyramid import STRIDES

from ..tiny import TINY, randomize
from .rounding import bound

DEPTHS = {'n12': 12, **{name: arch['depth'] for name, arch in TINY.items()}}
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """The arguments of a backbone, and its input."""

    arguments: dict[str, Any]
    batch: int
    size: tuple[int, int]
    dtype: torch.dtype
    layout: str
    piece: int
    training: bool
    seed: int
    autocast: torch.dtype | None

    def model(self, **changes: Any) -> XCiT:
        """The backbone in its mode. Models with the same parameters have the same weights."""
        arguments = {**self.arguments, **changes}
        model = _built(self.dtype, tuple(sorted(arguments.items())))
        randomize(model)
        model.zero_grad()
        return model.train(self.training)

    def tolerance(self) -> float:
        """How far two ways to run the network may be apart, relative to the norm of the result."""
        arch = TINY.get(self.arguments['arch'], dict(embed_dims=128, depth=12, num_heads=4))
        dims, patch = arch['embed_dims'], self.arguments['patch_size']
        tokens = math.prod(-(-side // patch) for side in self.size)
        attention = (dims, tokens, dims // arch['num_heads'], dims)
        layer = (*attention, 9, 9, dims, 4 * dims)
        stem, level = (27, *(9 * (dims >> i) for i in (3, 2, 1))), (dims, dims)
        return bound(self.dtype, *stem, *(layer * arch['depth']), *level)

    def images(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        images = torch.randn(self.batch, 3, *self.size, generator=generator)
        return lay_out(images.to(self.dtype), self.layout)

    def run(self, model: XCiT, images: torch.Tensor, grad: bool = False) -> tuple:
        """The features, computed in pieces of this case's size."""
        torch.manual_seed(self.seed)  # for stochastic depth
        enabled = self.autocast is not None
        with (
            pieces(self.piece),
            torch.set_grad_enabled(grad),
            torch.autocast('cpu', self.autocast or torch.bfloat16, enabled),
        ):
            return model(images)


@st.composite
def cases(
    draw: Any,
    modes: tuple[str, ...] = ('eval', 'norm_eval', 'train'),
    batches: tuple[int, int] = (1, 4),
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    autocast: bool = False,
) -> Case:
    """Any backbone on any images.

    Args:
        draw: Hypothesis' draw function.
        modes: ``eval``, ``norm_eval`` (training with fixed statistics) or ``train``.
        batches: The smallest batch and the largest.
        dtypes: Of weights and images.
        autocast: Whether autocast may be on.
    """
    arch = draw(st.sampled_from([*TINY] * 8 + ['n12']))  # n12 rarely: it is slow
    patch_size = draw(st.sampled_from([8, 16]))
    pyramid = draw(st.booleans())
    layers = st.lists(
        st.integers(0, DEPTHS[arch] - 1), min_size=1, max_size=5 if pyramid else None, unique=True
    )
    out_indices = tuple(sorted(draw(layers)))
    strides = st.sampled_from([*itertools.combinations(STRIDES, len(out_indices))])
    mode = draw(st.sampled_from(modes))
    sides = st.integers(patch_size, 3 * patch_size if arch == 'n12' else 5 * patch_size)
    smallest, largest = batches
    if mode == 'train':  # BatchNorm needs more than one value
        smallest = max(smallest, 2)
    dtype = draw(st.sampled_from(dtypes))
    autocast_types = [None, *HALVES] if autocast and dtype == torch.float32 else [None]
    return Case(
        arguments=dict(
            arch=arch,
            patch_size=patch_size,
            pyramid=pyramid,
            out_indices=out_indices,
            strides=draw(strides) if pyramid else None,
            qkv_bias=draw(st.booleans()),
            attention=draw(st.sampled_from(['auto', 'token', 'covariance'])),
            with_cp=draw(st.booleans()),
            recompute_ffn=draw(st.booleans()),
            norm_eval=mode == 'norm_eval',
            drop_path_rate=draw(st.sampled_from([0.0, 0.3])),
        ),
        batch=draw(st.integers(smallest, largest)),
        size=(draw(sides), draw(sides)),
        dtype=dtype,
        layout=draw(st.sampled_from(['contiguous', 'channels_last', 'slice', 'transposed'])),
        piece=draw(st.sampled_from([0, 8] if arch == 'n12' else [0, 1, 2, 3, 7])),
        training=mode != 'eval',
        seed=draw(st.integers(0, 2**16)),
        autocast=draw(st.sampled_from(autocast_types)),
    )


def lay_out(images: torch.Tensor, layout: str) -> torch.Tensor:
    """The same images with other strides."""
    if layout == 'channels_last':
        return images.contiguous(memory_format=torch.channels_last)
    if layout == 'transposed':
        return images.mT.contiguous().mT
    if layout == 'slice':
        batch, channels, height, width = images.shape
        larger = torch.full(
            (batch, channels + 2, 2 * height, 2 * width + 1), math.nan, dtype=images.dtype
        )
        larger[:, 1:-1, ::2, 1::2] = images
        return larger[:, 1:-1, ::2, 1::2]
    return images


@functools.lru_cache(maxsize=256)
def _built(dtype: torch.dtype, arguments: tuple) -> XCiT:
    options = dict(arguments)
    return XCiT(**{**options, 'arch': TINY.get(options['arch'], 'n12')}).to(dtype)


@contextmanager
def pieces(length: int) -> Iterator[None]:
    """Work on pieces of so many rows or tokens; with 0, the package chooses the length."""
    with pytest.MonkeyPatch.context() as patch:
        if length:
            patch.setitem(chunks.CHUNK_ELEMENTS, 'cpu', 1)
            patch.setattr(chunks, 'MIN_TOKENS', length)
            patch.setattr(chunks, 'MIN_ROWS', length)
        yield
