"""Samplers for processes that share images: all of a group get the same batch.

They are those of :mod:`xcit_mm.engine.randomness`, which seed each sample. So the augmentations are
the same too.
"""

import math
from typing import Any

from mmengine.registry import DATA_SAMPLERS

from ..engine.randomness import SeededDefaultSampler, SeededInfiniteSampler
from .collectives import check_sharing


def _share(sampler: Any, processes: int) -> None:
    """Let a sampler count groups of processes instead of processes."""
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
