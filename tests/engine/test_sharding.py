"""Sharded training (FSDP2) over two gloo processes computes what DDP does, and saves the same."""

import os

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.hooks import EMAHook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.tiny import forget_runs
from xcit_mm.engine import FullySharded
from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.engine.sharding import check_supported
from xcit_mm.errors import UserError
from xcit_mm.large import SpreadXCiT
from xcit_mm.models import XCiT

from . import runs

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
ARCH = dict(embed_dims=16, depth=2, num_heads=2, drop_path_rate=0.2, layer_scale_init=1.0)
STEPS = 4


@MODELS.register_module()
class TinyRegressor(BaseModel):
    """A network with a frozen part, BatchNorm, and shapes that two processes cannot halve."""

    def __init__(self):
        super().__init__()
        # The modules one by one, as they run when they are sharded.
        self.backbone = XCiT(ARCH, out_indices=(0, 1), strides=(8, 32), frozen_stages=1, fast=False)
        self.head = nn.Linear(16, 3)
        self.last = nn.Linear(3, 1)
        self.losses = []

    def forward(self, inputs, data_samples=None, mode='tensor'):
        features = sum(level.mean((2, 3)) for level in self.backbone(torch.stack(inputs)))
        loss = (self.last(self.head(features)) - 1).square().mean()
        if mode == 'predict':
            return [float(loss)] * len(inputs)
        self.losses.append(float(loss.detach()))
        return dict(loss=loss)


@DATASETS.register_module()
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return dict(inputs=torch.randn(3, 32, 48))


def settings(work_dir, wrapper, **more):
    hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', interval=STEPS // 2, by_epoch=False))
    hooks |= dict(exact_resume=dict(type='ExactResumeHook'), non_finite=dict(type='NonFiniteHook'))
    loader = dict(dataset=dict(type='Noise'), batch_size=2, num_workers=0)
    loader |= dict(sampler=dict(type='SeededInfiniteSampler'))
    loader |= dict(batch_sampler=dict(type='SeededBatchSampler'))
    optimizer = dict(type='AdamW', lr=1e-2, weight_decay=0.05)
    decay = dict(custom_keys={'norm': dict(decay_mult=0.0), 'head': dict(lr_mult=2.0)})
    return dict(
        model=dict(type='TinyRegressor'),
        work_dir=str(work_dir),
        train_dataloader=loader,
        train_cfg=dict(type='ExactIterBasedTrainLoop', max_iters=STEPS),
        optim_wrapper=dict(optimizer=optimizer, paramwise_cfg=decay),
        param_scheduler=dict(type='PolyLR', by_epoch=False, end=STEPS),
        default_hooks=hooks,
        default_scope='mmengine',
        launcher='pytorch',
        randomness=dict(seed=1),
        model_wrapper_cfg=wrapper,
        **more,
    )


DDP = dict(type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)
SHARDED = dict(type='FullySharded')
NEVER = dict(type='AtomicCheckpointHook', interval=-1, save_last=False)
CLIP = {'optim_wrapper.clip_grad': dict(max_norm=0.1), 'default_hooks.checkpoint': NEVER}


def train(work_dir, wrapper, resume=None, **options):
    """Train; returns the runner and the losses of all processes."""
    cfg = Config(settings(work_dir, dict(wrapper)))
    cfg.merge_from_dict(options)
    if resume is not None:
        cfg.resume, cfg.load_from = True, None if resume is True else str(resume)
    forget_runs()
    runner = GuardedRunner.from_cfg(cfg)
    runner.train()
    return runner, all_gather_object(runner.model.module.losses)


def check_shards(runner):
    """Check that this process keeps about half of the parameters and of the optimizer's state."""
    parameters = list(runner.model.parameters())
    assert all(isinstance(parameter, DTensor) for parameter in parameters)
    kept = sum(parameter.to_local().numel() for parameter in parameters)
    assert 0.4 < kept / sum(parameter.numel() for parameter in parameters) < 0.6
    for state in runner.optim_wrapper.optimizer.state.values():
        assert isinstance(state['exp_avg'], DTensor)


def check_overflow():
    """Check that an infinite gradient in one process cancels the scaled step of both."""
    layer = fully_shard(nn.Linear(3, 4))
    scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for is_faulty in (True, False):
        scaler.scale(layer(torch.ones(1, 3)).sum()).backward()
        if is_faulty and distributed.get_rank() == 1:
            layer.weight.grad.to_local().fill_(float('inf'))
        before = layer.weight.to_local().clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(before, layer.weight.to_local()) == is_faulty
        assert scaler.get_scale() == 2.0


def check_work_folders(folder, rank):
    """Check that a resumed run stops if only one process finds the checkpoint."""
    mine = folder / ('ddp' if rank == 0 else 'empty')
    with pytest.raises(UserError, match='must be on a disk that all machines share'):
        train(mine, DDP, resume=True)


def work(rank, port, folder):
    os.environ.update(
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE='2',
    )  # fmt: skip
    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    _, expected = train(folder / 'ddp', DDP)
    runner, losses = train(folder / 'sharded', SHARDED)
    assert losses == expected and losses[0] != losses[1]
    check_shards(runner)
    # Either kind continues what the other one saved.
    middle = f'iter_{STEPS // 2}.pth'
    train(folder / 'sharded_then_ddp', DDP, folder / 'sharded' / middle)
    train(folder / 'ddp_then_sharded', SHARDED, folder / 'ddp' / middle)
    clipped, clipped_and_sharded = (
        torch.tensor(train(folder / 'clipped', wrapper, **CLIP)[1]) for wrapper in (DDP, SHARDED)
    )
    assert not torch.equal(clipped, torch.tensor(expected))
    # The norm is summed in another order: some roundings of 6e-8, amplified by the steps.
    torch.testing.assert_close(clipped_and_sharded, clipped, rtol=1e-5, atol=0)
    check_overflow()
    check_work_folders(folder, rank)
    distributed.destroy_process_group()


def test_sharded_training_equals_ddp(free_port, tmp_path):
    multiprocessing.spawn(work, (free_port, tmp_path), nprocs=2)
    last = f'iter_{STEPS}.pth'
    for name in ('sharded', 'sharded_then_ddp', 'ddp_then_sharded'):
        runs.check_same_training(tmp_path / 'ddp' / last, tmp_path / name / last)
    TinyRegressor().load_state_dict(runs.load(tmp_path / 'ddp' / last)['state_dict'])


def test_what_cannot_be_sharded_is_refused():
    class Run:
        cfg = Config(dict(find_unused_parameters=True))
        hooks = (EMAHook(),)

    model = TinyRegressor()
    model.scale = nn.Parameter(torch.tensor(1.0))
    model.other = SpreadXCiT(ARCH, out_indices=(0, 1), strides=(8, 32))
    expected = r'dimensions \(scale\) and SpreadXCiT and EMAHook and find_unused_parameters: leave'
    with pytest.raises(UserError, match=expected):
        check_supported(model, Run())
    Run.cfg, Run.hooks = Config(), ()
    check_supported(TinyRegressor(), Run())


def test_another_runner_is_refused():
    with pytest.raises(RuntimeError, match="runner_type = 'GuardedRunner'"):
        FullySharded(TinyRegressor()).train_step({}, None)
