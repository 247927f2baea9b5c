"""Four gloo processes that share images and compare the results with those of one process.

A script of its own: processes with autograd cannot be forked from a test.
"""

import copy
import datetime
import os
import sys

import pytest
import torch
from torch import distributed, multiprocessing

from xcit_mm.large import SharedDefaultSampler, SharedInfiniteSampler
from xcit_mm.large.collectives import LostProcessError
from xcit_mm.large.processes import SpreadBackbone, SpreadXCiT

from .. import tiny

ARCH = dict(embed_dims=16, depth=3, num_heads=2, drop_path_rate=0.3)
SIZE = (150, 60)
WORLD = 4


def make_backbone(patch_size, **options):
    backbone = tiny.backbone(ARCH, patch_size, SpreadXCiT, strides=(4, 8, 32), **options)
    return backbone.double().train()


def loss_of(levels, weights):
    return sum((level * weight).sum() for level, weight in zip(levels, weights, strict=True))


def state_of(backbone):
    grads = {f'{name}.grad': p.grad for name, p in backbone.named_parameters()}
    return {**grads, **{n: b for n, b in backbone.named_buffers() if b.is_floating_point()}}


def compare(found, expected, what):
    # Biases before a BatchNorm have no gradient but rounding.
    floor = 1e-3 * max(float(value.detach().abs().max()) for value in expected.values())
    for name, value in expected.items():
        scale = max(float(value.detach().abs().max()), floor)
        error = float((found[name] - value).abs().max()) / scale
        assert error < 1e-9, (what, name, error)


def check_training(size, patch_size, gather, images):
    """Features, gradients and running statistics of `size` processes are those of one."""
    groups = [distributed.new_group(list(range(i, i + size))) for i in range(0, WORLD, size)]
    group = groups[distributed.get_rank() // size]
    alone, shared = make_backbone(patch_size), make_backbone(patch_size)
    torch.manual_seed(5)
    expected = super(SpreadXCiT, alone).forward(images)
    weights = [torch.randn_like(level) for level in expected]
    loss_of(expected, weights).backward()

    torch.manual_seed(5 + distributed.get_rank(group))  # the first process decides
    spread = SpreadBackbone(shared, group)
    low, high = spread.pixel_rows(images.shape[2])
    levels = spread(images[:, :, low:high], images.shape[2], gather=gather)
    if gather:
        compare(dict(enumerate(levels)), dict(enumerate(expected)), (size, patch_size))
    else:
        rows = [level.shape[2] for level in levels]
        sums = [torch.tensor(rows) for _ in range(size)]
        distributed.all_gather(sums, torch.tensor(rows), group=group)
        first = torch.stack(sums)[: distributed.get_rank(group)].sum(0).tolist()
        own = [slice(a, a + n) for a, n in zip(first, rows, strict=True)]
        weights = [weight[:, :, part] for weight, part in zip(weights, own, strict=True)]
    loss_of(levels, weights).backward()
    for parameter in shared.parameters():
        distributed.all_reduce(parameter.grad, group=group)
        if gather:  # each process had the whole loss
            parameter.grad /= size
    compare(state_of(shared), state_of(alone), (size, patch_size, gather))
    return spread


def check_bytes(images):
    """What inference exchanges is what the cost model says."""
    backbone = make_backbone(16).eval().float()
    spread = SpreadBackbone(backbone)
    low, high = spread.pixel_rows(SIZE[0])
    with torch.no_grad():
        levels = spread(images[:, :, low:high], SIZE[0], gather=False)
        whole = backbone(images)  # in eval mode, each process alone
        gathered = SpreadBackbone(backbone)(images[:, :, low:high], SIZE[0])
    for level, reference in zip(gathered, whole, strict=True):
        torch.testing.assert_close(level, reference, atol=1e-5, rtol=1e-5)
    rank = distributed.get_rank()
    rows = spread.rows(SIZE[0])
    assert levels[2].shape[2] == rows[rank][1] // 2 - rows[rank][0] // 2
    # The cost model of docs/large_images.md, for 3 layers of float32.
    dims, width, neighbors = 16, -(-SIZE[1] // 16), (rank > 0) + (rank < WORLD - 1)
    sent = spread.group.sent
    assert sent['sums'] == 3 * 4 * (dims + 1) ** 2
    assert sent['rows'] == 3 * 4 * neighbors * 2 * width * dims
    assert sent['first'] == (3 * 4 * dims if rank == 0 else 0)
    assert sent['gathered'] == 0


def check_batches():
    """Processes that share images get the same samples with the same seeds, others get others."""
    rank = distributed.get_rank()
    for kind in (SharedDefaultSampler, SharedInfiniteSampler):
        sampler = kind(range(10), processes=2, shuffle=True, seed=0)
        own = [[int(index), index.key[3]] for index, _ in zip(sampler, range(5), strict=False)]
        found = [torch.empty(5, 2, dtype=torch.long) for _ in range(WORLD)]
        distributed.all_gather(found, torch.tensor(own))
        assert torch.equal(found[rank], found[rank ^ 1])
        first, second = found[0][:, 0].tolist(), found[2][:, 0].tolist()
        assert sorted(first + second) == list(range(10))
    with pytest.raises(ValueError, match='must be a multiple'):
        SharedDefaultSampler(range(10), processes=3)


def work(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    # If a test fails in one process, the others must not wait for it.
    limit = datetime.timedelta(seconds=60)
    distributed.init_process_group('gloo', rank=rank, world_size=WORLD, timeout=limit)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, *SIZE, generator=generator, dtype=torch.float64)
    for size, patch_size, gather in [(1, 16, True), (2, 16, True), (2, 8, False), (4, 16, False),
                                     (4, 8, True)]:  # fmt: skip
        check_training(size, patch_size, gather, images)
    check_bytes(images[:1].float())
    check_batches()
    backbone = make_backbone(16, processes=2, drop_path_rate=0.0)
    with torch.no_grad():
        levels = copy.deepcopy(backbone(images))
        copy.deepcopy(backbone)  # as for an average of the weights
        expected = super(SpreadXCiT, backbone).forward(images)
    compare(dict(enumerate(levels)), dict(enumerate(expected)), 'two groups of two')
    with pytest.raises(ValueError, match='too few for 4 processes'):
        SpreadXCiT.forward(make_backbone(16), images[:, :, :32])
    lose_one(images)


def lose_one(images):
    """A process ends: the others say so instead of waiting."""
    backbone = make_backbone(16)
    backbone(images)
    if distributed.get_rank() == WORLD - 1:
        os._exit(0)
    with pytest.raises(LostProcessError, match='A process that shares the image was lost'):
        backbone(images)
    print('ok', flush=True)
    os._exit(0)


if __name__ == '__main__':
    multiprocessing.start_processes(work, (int(sys.argv[1]),), WORLD, start_method='fork')
