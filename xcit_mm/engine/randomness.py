"""Random numbers that depend only on the seed and the position in the run.

mmengine seeds its processes when they start. What they draw later depends on everything they drew
before, and a resumed run does not repeat that: its augmentations and dropped paths differ. Here
each sample and each iteration has its own seed. So a resumed run continues bit for bit as if
it had never stopped, with any number of data-loading processes.

A sampler gives each index its seed. The batch sampler makes batches that set it: the data loader
iterates over a batch, in whichever process loads it, and loads each sample before it asks for the
next index.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS, LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import BatchSampler, Sampler

# Seeds of samples and of iterations both start with the run's seed; this tells them apart.
ITERATION, SAMPLE = 0, 1


def seed_all(*key: int) -> None:
    """Seed Python, numpy and torch from a list of numbers."""
    seeds = np.random.SeedSequence(key).generate_state(3)
    random.seed(int(seeds[0]))
    np.random.seed(seeds[1])
    torch.manual_seed(int(seeds[2]))


class SeededIndex(int):
    """An index of a dataset that carries the seed of its sample, even to another process."""

    key: tuple[int, ...]


@DATA_SAMPLERS.register_module()
class SeededDefaultSampler(DefaultSampler):
    """mmengine's ``DefaultSampler`` with one seed per sample."""

    def __iter__(self) -> Iterator[SeededIndex]:
        return _with_seeds(self, super().__iter__(), self.epoch)


@DATA_SAMPLERS.register_module()
class SeededRepeatSampler(SeededDefaultSampler):
    """Repeated augmentation: each image comes several times in a row, augmented differently.

    As in DeiT, the copies go to different processes, and an epoch is as long as without repeats:
    it covers only a part of the images.

    Args:
        dataset: The dataset.
        repeats (int): How often an image comes. Defaults to 3.
        shuffle (bool): Whether the order is random. Defaults to True.
        seed (int, optional): Seed of the order, the same in all processes. Defaults to None.
        round_down_to (int): The length of an epoch is a multiple of this, unless there are fewer
            images. Defaults to 256, as in DeiT.
    """

    def __init__(
        self,
        dataset: Sized,
        repeats: int = 3,
        shuffle: bool = True,
        seed: int | None = None,
        round_down_to: int = 256,
    ) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed)
        self.repeats = repeats
        count = len(dataset) // round_down_to * round_down_to or len(dataset)
        self.num_samples = max(count // self.world_size, 1)
        self.total_size = self.num_samples * self.world_size

    def __iter__(self) -> Iterator[SeededIndex]:
        count = len(self.dataset)
        order = torch.arange(count)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(count, generator=generator)
        mine = slice(self.rank, self.total_size, self.world_size)
        indices = order.repeat_interleave(self.repeats)[mine].tolist()
        return _with_seeds(self, indices, self.epoch)


@DATA_SAMPLERS.register_module()
class SeededInfiniteSampler(InfiniteSampler):
    """mmengine's ``InfiniteSampler`` with one seed per sample.

    Attributes:
        start (int): Number of samples to skip.
    """

    start = 0

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


class SeededBatch:
    """Indices of a batch; iterating over them seeds the process before each sample.

    Args:
        indices (list[SeededIndex]): The batch.
    """

    def __init__(self, indices: list[SeededIndex]) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        for index in self.indices:
            seed_all(*index.key)
            yield int(index)


@DATA_SAMPLERS.register_module()
class SeededBatchSampler(Sampler):
    """Batches that are loaded with the seeds of a seeded sampler.

    Args:
        sampler (SeededDefaultSampler or SeededInfiniteSampler): The indices.
        batch_size (int): Samples per batch.
        batches (dict, optional): Config of the batch sampler that forms the batches, such as
            ``dict(type='AspectRatioBatchSampler')``. Defaults to None: torch's ``BatchSampler``.
        drop_last (bool): Whether to leave out an incomplete last batch. Defaults to False.
    """

    def __init__(
        self,
        sampler: SeededDefaultSampler | SeededInfiniteSampler,
        batch_size: int,
        batches: dict | None = None,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, (SeededDefaultSampler, SeededInfiniteSampler)):
            raise TypeError(
                'SeededBatchSampler needs SeededDefaultSampler or SeededInfiniteSampler as the '
                f'sampler, not {type(sampler).__name__}'
            )
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        settings = dict(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self.batches = DATA_SAMPLERS.build(
            batches or dict(type=BatchSampler), default_args=settings
        )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        return map(SeededBatch, self.batches)


@LOOPS.register_module()
class ExactIterBasedTrainLoop(IterBasedTrainLoop):
    """mmengine's ``IterBasedTrainLoop``, but it computes its position in the data after a resume.

    mmengine reloads all data that the run has already seen. The result is the same, but it takes as
    long as the first time. The data loader must have a ``SeededInfiniteSampler`` and a
    ``SeededBatchSampler`` without ``batches``; otherwise this loop does what mmengine's does.
    """

    def run(self) -> nn.Module:
        """As in mmengine."""
        batches = self.dataloader.batch_sampler
        sampler = getattr(batches, 'sampler', None)
        is_plain = type(getattr(batches, 'batches', None)) is BatchSampler
        if self.iter > 0 and is_plain and isinstance(sampler, SeededInfiniteSampler):
            sampler.start = self.iter * batches.batch_size
            # mmengine takes as many batches from the iterator as the run has seen.
            seen = itertools.repeat(None, self.iter)
            iterator: Any = self.dataloader_iterator  # type: ignore[has-type]
            rest = type(iterator)(self.dataloader)
            self.dataloader_iterator = itertools.chain(seen, rest)
        return super().run()


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Seeds each iteration, so that a resumed run continues exactly where it stopped.

    The data loader needs a ``SeededDefaultSampler`` or a ``SeededInfiniteSampler``, and a
    ``SeededBatchSampler``.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Warn about a data loader whose samples depend on what was drawn before."""
        batches = runner.train_dataloader.batch_sampler
        if not isinstance(batches, SeededBatchSampler):
            sampler = getattr(batches, 'sampler', None)
            runner.logger.warning(
                f'With the sampler {type(sampler).__name__} and the batch sampler '
                f'{type(batches).__name__}, a resumed run differs from an uninterrupted one. '
                'To get the same result bit for bit, set in train_dataloader: '
                "sampler=dict(type='SeededDefaultSampler') or 'SeededInfiniteSampler', and "
                "batch_sampler=dict(type='SeededBatchSampler')."
            )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        """Seed dropout, stochastic depth and whatever else the model draws, per process."""
        seed_all(runner.seed, ITERATION, runner.iter, runner.rank)
