"""Random numbers depend only on the seed and the position in the run."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATA_SAMPLERS
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from tests.engine import runs
from xcit_mm.engine import (
    ExactResumeHook,
    SeededBatchSampler,
    SeededDefaultSampler,
    SeededInfiniteSampler,
)
from xcit_mm.engine.runner import GuardedRunner

EXACT, THEIRS = 'ExactIterBasedTrainLoop', 'IterBasedTrainLoop'


class Draws(Dataset):
    """Samples with random numbers of all three generators."""

    def __init__(self, length=6):
        self.length = length
        self.asked = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.asked.append(index)
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


def epochs(workers, persistent, first=0):
    dataset = Draws()
    sampler = SeededDefaultSampler(dataset, seed=3)
    loader = DataLoader(
        dataset,
        batch_sampler=SeededBatchSampler(sampler, 2),
        num_workers=workers,
        persistent_workers=persistent,
    )
    batches = []
    for epoch in range(first, 3):
        sampler.set_epoch(epoch)
        batches.append(torch.stack(list(loader)))
    return batches


def test_samples_are_the_same_with_any_number_of_workers_and_after_a_restart():
    expected = epochs(workers=0, persistent=False)
    drawn = torch.stack(expected)[..., 1:]
    assert len(drawn.unique()) == drawn.numel()  # no number is drawn twice
    for workers, persistent, first in ((1, True, 0), (2, True, 0), (2, False, 0), (2, True, 2)):
        random.seed(workers)
        assert not runs.differences(epochs(workers, persistent, first), expected[first:])


@DATA_SAMPLERS.register_module()
class OddFirst(BatchSampler):
    """Separate batches for odd and even indices, as mmdet groups images by their shape."""

    def __iter__(self):
        indices = list(self.sampler)
        for rest in (1, 0):
            chosen = [index for index in indices if index % 2 == rest]
            yield from (chosen[i : i + 2] for i in range(0, len(chosen), 2))


def test_a_sample_keeps_its_seed_in_another_batch():
    sampler = SeededDefaultSampler(Draws(), seed=3)
    plain = SeededBatchSampler(sampler, 2)
    grouped = SeededBatchSampler(sampler, 2, batches=dict(type='OddFirst'))
    drawn = [
        {
            int(row[0]): row.tolist()
            for batch in DataLoader(Draws(), batch_sampler=b)
            for row in batch
        }
        for b in (plain, grouped)
    ]
    assert drawn[0] == drawn[1] and list(drawn[0]) != list(drawn[1])


def test_batches_need_a_sampler_with_seeds():
    with pytest.raises(TypeError, match='needs SeededDefaultSampler or SeededInfiniteSampler'):
        SeededBatchSampler(SequentialSampler(Draws()), 2)


def take(count, start=0, **kwargs):
    sampler = SeededInfiniteSampler(Draws(), **kwargs)
    sampler.start = start
    iterator = iter(sampler)
    return [(int(index), index.key) for index, _ in zip(iterator, range(count), strict=False)]


def test_an_infinite_sampler_starts_anywhere_and_starts_over():
    expected = take(20, seed=3)
    assert take(15, start=5, seed=3) == expected[5:]
    assert take(20, seed=4) != expected
    sampler = SeededInfiniteSampler(Draws(), seed=3)
    assert next(iter(sampler)) == next(iter(sampler))  # even if another iteration has started
    assert len({key for _, key in expected}) == 20


def test_several_processes_have_the_seeds_of_one(monkeypatch):
    expected = take(20, seed=3)
    parts = []
    for rank in range(2):
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda rank=rank: (rank, 2))
        parts.append(take(10, seed=3))
    assert [sample for pair in zip(*parts, strict=True) for sample in pair] == expected


def test_each_process_drops_paths_of_its_own():
    def drawn(rank, iteration=5):
        runner = SimpleNamespace(seed=3, iter=iteration, rank=rank)
        ExactResumeHook().before_train_iter(runner, 0)
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert drawn(0) == drawn(0)
    for other in (drawn(1), drawn(0, iteration=6)):
        assert all(a != b for a, b in zip(drawn(0), other, strict=True))


class Model(BaseModel):
    """Draws random numbers too, in dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.layers(torch.stack(inputs)).square().mean())


class Inputs(Draws):
    def __getitem__(self, index):
        return dict(inputs=super().__getitem__(index))


def train(work_dir, workers, until, seeded=True, loop=EXACT, seed=1, **kwargs):
    """Train; return the weights and the indices that the data loader asked for."""
    runner = GuardedRunner(
        Model(),
        work_dir=str(work_dir),
        experiment_name=f'{work_dir}_{until}'.replace('/', '_'),
        train_dataloader=dict(
            dataset=Inputs(), batch_size=2, num_workers=workers, persistent_workers=workers > 0,
            sampler=dict(type='SeededInfiniteSampler' if seeded else 'InfiniteSampler'),
            batch_sampler=dict(type='SeededBatchSampler') if seeded else None,
        ),
        train_cfg=dict(type=loop, max_iters=until),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.01)),
        randomness=dict(seed=seed),
        default_hooks=dict(
            exact_resume=dict(type='ExactResumeHook'),
            checkpoint=dict(type='AtomicCheckpointHook', by_epoch=False, interval=1),
        ),
        **kwargs,
    )  # fmt: skip
    runner.train()
    return runner.model.state_dict(), runner.train_dataloader.dataset.asked


@pytest.mark.parametrize(
    'workers, loop, seed', [(0, EXACT, 1), (2, EXACT, None), (2, THEIRS, 5), (0, THEIRS, None)]
)
def test_a_resumed_run_is_exact(workers, loop, seed, tmp_path):
    """It keeps the seed of its checkpoint; with our loop, it loads no data again."""
    expected, asked = train(tmp_path / 'a', 0, until=7)
    train(tmp_path / 'b', workers, until=4, loop=loop)
    resumed, rest = train(tmp_path / 'b', workers, until=7, loop=loop, seed=seed, resume=True)
    assert not runs.differences(resumed, expected)
    if workers == 0:  # otherwise, other processes loaded the data
        assert rest == asked[8:] if loop == EXACT else rest == asked


def test_with_mmengines_own_sampler_it_is_not_exact_and_a_warning_says_so(tmp_path, capfd):
    stock = dict(seeded=False, loop=THEIRS)
    expected, _ = train(tmp_path / 'a', 0, until=7, **stock)
    train(tmp_path / 'b', 0, until=4, **stock)
    resumed, _ = train(tmp_path / 'b', 0, until=7, resume=True, **stock)
    assert runs.differences(resumed, expected)
    printed = ''.join(capfd.readouterr())
    assert 'With the sampler InfiniteSampler and the batch sampler BatchSampler, a' in printed
