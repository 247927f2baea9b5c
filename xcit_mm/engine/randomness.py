"""Random numbers that depend on nothing but the seed and the place in the run.

mmengine seeds its processes when they start. What they draw later depends on all they drew before,
which a resumed run does not repeat: it would go on with other augmentations and other dropped
paths. Here each sample is prepared, and each iteration is run, from a seed of its own. So a resumed
run goes on bit for bit as if it had never stopped, with any number of data-loading processes.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler

# Both kinds of seeds begin with the run's; this keeps them apart.
ITERATION, SAMPLE = 0, 1


def seed_all(*key: int) -> None:
    """Seed Python, numpy and torch from a list of numbers."""
    seeds = np.random.SeedSequence(key).generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    torch.manual_seed(int(seeds[2]))


class SeededIndex(int):
    """An index of a data set that brings the seed for its sample along, to another process too."""

    key: tuple[int, ...]


class SeededItems:
    """What a data loader calls for a batch if a data set has it as ``__getitems__``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, indices: Sequence[int]) -> list:
        return [self._get(index) for index in indices]

    def _get(self, index: int) -> Any:
        if isinstance(index, SeededIndex):  # others come from somebody else's data loader
            seed_all(*index.key)
        return self.dataset[int(index)]


@DATA_SAMPLERS.register_module()
class SeededDefaultSampler(DefaultSampler):
    """mmengine's ``DefaultSampler`` with a seed for each sample."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        dataset.__getitems__ = SeededItems(dataset)

    def __iter__(self) -> Iterator[SeededIndex]:
        return _with_seeds(self, super().__iter__(), self.epoch)


@DATA_SAMPLERS.register_module()
class SeededInfiniteSampler(InfiniteSampler):
    """mmengine's ``InfiniteSampler`` with a seed for each sample.

    Attributes:
        start (int): How many samples to leave out.
    """

    start = 0

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        dataset.__getitems__ = SeededItems(dataset)

    def __iter__(self) -> Iterator[SeededIndex]:
        indices = itertools.islice(self._indices_of_rank(), self.start, None)
        return _with_seeds(self, indices, epoch=0, start=self.start)


def _with_seeds(
    sampler: Any, indices: Iterable[int], epoch: int, start: int = 0
) -> Iterator[SeededIndex]:
    for position, index in enumerate(indices, start):
        seeded = SeededIndex(index)
        place = position * sampler.world_size + sampler.rank
        seeded.key = (sampler.seed, SAMPLE, epoch, place)
        yield seeded


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Seeds each iteration, and lets a resumed run find its place in the data at once.

    The data loader's sampler must be a ``SeededDefaultSampler`` or a ``SeededInfiniteSampler``.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Leave out the data that an iteration-based run has seen, instead of loading it again."""
        loop, loader = runner.train_loop, runner.train_dataloader
        batches = loader.batch_sampler
        sampler: Any = getattr(batches, 'sampler', None)
        if not isinstance(sampler, (SeededDefaultSampler, SeededInfiniteSampler)):
            runner.logger.warning(
                f'With the sampler {type(sampler).__name__} a resumed run is not exactly the run '
                'that was stopped; with SeededDefaultSampler or SeededInfiniteSampler it is.'
            )
        is_plain = isinstance(sampler, SeededInfiniteSampler) and type(batches) is BatchSampler
        if isinstance(loop, IterBasedTrainLoop) and is_plain and loop.iter > 0:
            sampler.start = loop.iter * batches.batch_size
            # Before it begins, the loop takes as many batches as it has seen.
            seen = itertools.repeat(None, loop.iter)
            rest = type(loop.dataloader_iterator)(loader)
            loop.dataloader_iterator = itertools.chain(seen, rest)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        """Seed dropout, stochastic depth and whatever else the model draws."""
        seed_all(runner.seed, ITERATION, runner.iter)
