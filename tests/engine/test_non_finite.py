"""Iterations with a non-finite loss or gradient: skipped, reported, and finally stopped."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmcv.transforms import TRANSFORMS, BaseTransform
from mmengine.config import Config
from mmengine.hooks import RuntimeInfoHook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine import runs
from tests.engine.small_runs import BAD_GRADIENT, Model, batches, build, run
from tests.tiny import ROOT, call
from xcit_mm.engine import NonFiniteError, NonFiniteHook, ProgressBarHook, SeededInfiniteSampler
from xcit_mm.engine.training import train
from xcit_mm.errors import UserError


def report(work_dir, name):
    return json.loads((work_dir / 'non_finite' / f'iter_{name}.json').read_text())


def reports(work_dir):
    """Return the numbers of the iterations that were reported."""
    return sorted(int(path.stem.split('_')[1]) for path in (work_dir / 'non_finite').iterdir())


CLIP = dict(clip_grad=dict(max_norm=1.0))


@pytest.mark.parametrize('kind', ['nan', 'gradient'])
@pytest.mark.parametrize('optim', [{}, CLIP], ids=['plain', 'clipped'])
def test_a_skipped_iteration_leaves_no_trace(kind, optim, tmp_path):
    data = batches('good', 'good', kind, 'good', kind, kind, 'good')
    without = [s for i, s in enumerate(data) if i // 2 not in (2, 4, 5)]
    disturbed = run(tmp_path / 'a', data, NonFiniteHook(), **optim)
    expected = run(tmp_path / 'b', without, **optim)
    unguarded = run(tmp_path / 'c', data, **optim)
    states = [r.model.state_dict() for r in (disturbed, expected)]
    assert not runs.differences(*states)
    assert not runs.differences(*[r.optim_wrapper.state_dict() for r in (disturbed, expected)])
    assert not all(v.isfinite().all() for v in unguarded.model.state_dict().values())
    assert reports(tmp_path / 'a') == [3, 5, 6]


def test_three_in_a_row_stop_the_run_and_each_is_reported(tmp_path):
    data = batches('good', 'good', 'nan', 'good', 'nan', 'nan', 'nan', 'good')
    checkpoint = dict(type='AtomicCheckpointHook', by_epoch=False, interval=1, max_keep_ckpts=1)
    with pytest.raises(NonFiniteError) as raised:
        run(tmp_path, data, NonFiniteHook(), checkpoint=checkpoint)
    message = str(raised.value)
    assert 'Iteration 7 ' in message and '3 in a row' in message
    assert '6b.jpg (pixels not finite), 6a.jpg' in message and 'losses loss' in message
    # The last save was after iteration 6, which changed nothing since iteration 4.
    assert f'{tmp_path}/iter_6.pth' in message
    kept = runs.load(tmp_path / 'iter_6.pth')['state_dict']
    assert all(value.isfinite().all() for value in kept.values())
    assert reports(tmp_path) == [3, 5, 6, 7]
    last = report(tmp_path, 7)
    assert last['iteration'] == 7 and last['losses'] == dict(loss='nan')
    assert [image['path'] for image in last['images']] == ['6a.jpg', '6b.jpg']
    assert [image['finite'] for image in last['images']] == [True, False]
    names = {p['name'] for g in last['parameter_groups'] for p in g['parameters']}
    assert {'first.weight', 'last.weight'} <= names


@pytest.mark.parametrize('optim', [{}, CLIP], ids=['plain', 'clipped'])
def test_the_parameter_and_its_group_are_named(optim, tmp_path):
    paramwise = dict(custom_keys={'extra': dict(lr_mult=0.5)})
    with pytest.raises(NonFiniteError, match=r'gradients of extra in parameter groups \d+;'):
        data = batches('good', 'gradient')
        run(tmp_path, data, NonFiniteHook(1), paramwise_cfg=paramwise, **optim)
    (group,) = report(tmp_path, 2)['parameter_groups']
    assert group['lr'] == 0.005
    assert group['parameters'] == [dict(name='extra', gradient_norm='nan')]
    assert report(tmp_path, 2)['losses']['loss'] < 1000  # finite


def test_all_batches_of_an_accumulated_gradient_are_reported(tmp_path):
    data = batches('gradient', 'good', 'good', 'good', 'good', 'gradient')
    run(tmp_path / 'a', data, NonFiniteHook(2), accumulative_counts=2)
    assert reports(tmp_path / 'a') == [2, 6]
    images = [image['path'] for image in report(tmp_path / 'a', 2)['images']]
    assert images == ['0a.jpg', '0b.jpg', '1a.jpg', '1b.jpg']
    data = batches('gradient', 'good', 'gradient', 'good', 'good', 'good')
    with pytest.raises(NonFiniteError, match='2 in a row'):
        run(tmp_path / 'b', data, NonFiniteHook(2), accumulative_counts=2)


class SometimesUnused(Model):
    """``extra`` has a gradient only where that is not a number."""

    def forward(self, inputs, data_samples=None, mode='tensor'):
        if any(x[0] == BAD_GRADIENT for x in inputs):
            return super().forward(inputs, data_samples, mode)
        return dict(loss=self.last(self.norm(self.first(torch.stack(inputs)))).square().mean())


def test_an_accumulated_gradient_counts_where_the_last_pass_has_none(tmp_path):
    data = batches('gradient', 'good')
    runner = run(tmp_path, data, NonFiniteHook(), accumulative_counts=2, kind=SometimesUnused)
    assert torch.equal(runner.model.extra, torch.ones(3))
    (group,) = report(tmp_path, 2)['parameter_groups']
    assert 'extra' in [parameter['name'] for parameter in group['parameters']]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    checkpoint = dict(type='AtomicCheckpointHook', by_epoch=False, interval=1)
    optimizer = dict(type='SGD', lr=3e38)
    data = batches('good', 'good')
    with pytest.raises(NonFiniteError, match=r'weights are not finite and were not saved'):
        run(tmp_path, data, NonFiniteHook(), checkpoint=checkpoint, optimizer=optimizer)
    assert not list(tmp_path.glob('*.pth*'))


class CpuAmpOptimWrapper(AmpOptimWrapper):
    """mmengine's, with torch's scaler for the CPU; mmengine's constructor insists on CUDA."""

    def __init__(self, init_scale, optimizer):
        OptimWrapper.__init__(self, optimizer)
        self.cast_dtype = self._scale_update_param = None
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=init_scale)


def amp(init_scale):
    return lambda model: CpuAmpOptimWrapper(
        init_scale, torch.optim.SGD(model.parameters(), lr=0.01)
    )


def test_an_overflow_that_a_smaller_loss_scale_can_fix_does_not_count(tmp_path):
    data = batches(*['gradient'] * 4)
    runner = run(tmp_path / 'a', data, NonFiniteHook(1), wrapper=amp(1024.0))
    assert runner.optim_wrapper.loss_scaler.get_scale() == 64.0
    assert not runs.differences(
        dict(runner.model.named_parameters()), dict(Model().named_parameters())
    )
    assert not (tmp_path / 'a' / 'non_finite').exists()
    with pytest.raises(NonFiniteError, match=r'Iteration 3 .* gradients of extra'):
        run(tmp_path / 'b', data, NonFiniteHook(1), wrapper=amp(4.0))
    with pytest.raises(NonFiniteError, match=r'Iteration 2 .* losses loss'):
        run(tmp_path / 'c', batches('good', 'nan'), NonFiniteHook(1), wrapper=amp(1024.0))


class Reads(TorchDispatchMode):
    """Counts how often a number is read from its device, for which a CPU waits if that is a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class CountingHook(NonFiniteHook):
    """Lists the reads of each iteration."""

    def before_train(self, runner):
        self.reads = []
        super().before_train(runner)

    def before_train_iter(self, *args, **kwargs):
        self.reads.append(0)
        self._count(super().before_train_iter, *args, **kwargs)

    def _before_step(self, *args):
        self._count(super()._before_step, *args)

    def after_train_iter(self, *args, **kwargs):
        self._count(super().after_train_iter, *args, **kwargs)

    def _count(self, function, *args, **kwargs):
        with Reads() as reads:
            function(*args, **kwargs)
        self.reads[-1] += reads.count


@pytest.mark.parametrize(
    'optim, expected',
    [
        ({}, [1] * 4),
        (dict(accumulative_counts=2), [0, 1] * 2),
        (dict(wrapper=amp(1024.0)), [1] * 4),
    ],
    ids=['plain', 'accumulated', 'mixed precision'],
)
def test_a_gpu_is_waited_for_once_per_step(optim, expected, tmp_path):
    hook = CountingHook()
    run(tmp_path, batches(*['good'] * 4), hook, **optim)
    assert hook.reads == expected


class InfiniteLoss(Model):
    """Has finite gradients."""

    def forward(self, inputs, data_samples=None, mode='tensor'):
        loss = self.last(self.norm(self.first(torch.stack(inputs)))).square().mean()
        is_bad = any(x[0] == BAD_GRADIENT for x in inputs)
        return dict(loss=loss + self.extra.sum() + (math.inf if is_bad else 0))


@pytest.mark.parametrize('is_logged', [True, False])
def test_the_loss_counts_where_gradients_are_finite(is_logged, tmp_path):
    runner = build(tmp_path, batches('good', 'gradient'), NonFiniteHook(1), kind=InfiniteLoss)
    if not is_logged:
        runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, RuntimeInfoHook)]
    with pytest.raises(NonFiniteError, match=r'Iteration 2 .* losses loss'):
        runner.train()


def test_the_model_and_the_optimizer_are_left_as_they_were(tmp_path):
    runner = run(tmp_path, batches('good'), NonFiniteHook())
    runner.model.extra.sum().mul(math.nan).backward()
    runner.optim_wrapper.optimizer.step()
    assert not runner.model.extra.isfinite().any()


def run_two(work_dir, port, kinds, accumulated=1):
    """Return exit status and output of both processes."""
    common = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    words = ['-m', 'tests.engine.small_runs', str(work_dir), kinds, str(accumulated)]
    processes = [
        subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **common, 'RANK': rank, 'LOCAL_RANK': rank},
        )
        for rank in '01'
    ]  # fmt: skip
    printed = [process.communicate(timeout=300)[0] for process in processes]
    return [process.returncode for process in processes], printed


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_all_processes_stop_in_the_same_iteration(tmp_path, free_port):
    # The first loss concerns one process alone: no gradients are exchanged before the step.
    status, printed = run_two(tmp_path, free_port, 'nan good good good', accumulated=2)
    assert status == [1, 1]
    for text in printed:
        last = text.splitlines()[-1]
        assert 'NonFiniteError: Iteration 2 ' in last and '2 in a row' in last


@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_all_processes_skip_the_step_that_one_must_skip(tmp_path, free_port):
    status, printed = run_two(tmp_path, free_port, 'good gradient good')
    assert status == [0, 0], printed
    weights = [float(text.split()[-1]) for text in printed]
    assert weights[0] == weights[1] and math.isfinite(weights[0])
    assert report(tmp_path, '2_rank_0')['parameter_groups'] == []
    (group,) = report(tmp_path, '2_rank_1')['parameter_groups']
    assert [parameter['name'] for parameter in group['parameters']] == ['extra']
    assert 'gradients of another process' in printed[0]


def test_the_tool_stops_the_progress_bar_before_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    bar = ProgressBarHook()
    runner = build(tmp_path, batches('good', 'nan'), NonFiniteHook(1), bar)
    monkeypatch.setattr(bar, 'after_train_iter', lambda *_, **__: started.append(bar.progress))
    started = []
    with pytest.raises(UserError, match='Iteration 2 '):
        train(runner)
    assert started[0] is not None and bar.progress is None


@TRANSFORMS.register_module()
class Spoil(BaseTransform):
    """Makes one image infinite, as a broken transform or a 32-bit image can."""

    def __init__(self, name):
        self.name = name

    def transform(self, results):
        if results['img_path'].endswith(self.name):
            results['img'] = results['img'].astype(np.float32)
            results['img'][0, 0] = np.inf
        return results


def test_train_stops_with_a_paragraph_that_names_iteration_image_and_group(
    small_data, tmp_path, capfd
):
    names = sorted(p.name for p in (small_data / 'ade' / 'images' / 'training').iterdir())
    order = iter(SeededInfiniteSampler(range(len(names)), seed=5))
    order = [next(order) for _ in range(len(names))]
    spoilt, iteration = names[order[-1]], len(names) // 2  # the last of the first epoch
    config = runs.write_config(tmp_path, 'seg', small_data, steps=20)
    cfg = Config.fromfile(config)
    cfg.train_dataloader.dataset.pipeline.insert(-1, dict(type='Spoil', name=spoilt))
    cfg.default_hooks.non_finite.max_in_a_row = 1
    cfg.dump(config)
    work_dir = tmp_path / 'work'
    status = call('train', config, '--seed', '5', '--work-dir', work_dir)
    printed = ''.join(capfd.readouterr())
    assert status == 2, printed[-3000:]
    error = printed[printed.rindex('error: ') :]
    assert f'Iteration {iteration} ' in error and 'losses loss, decode.loss_ce' in error
    assert f'{spoilt} (pixels not finite)' in error and 'parameter groups' in error
    assert 'Traceback' not in printed
    assert runs.saved_step(work_dir) == iteration - 1
    kept = runs.load(work_dir / f'iter_{iteration - 1}.pth')['state_dict']
    assert all(value.isfinite().all() for value in kept.values())
    (name,) = [i['path'] for i in report(work_dir, iteration)['images'] if not i['finite']]
    assert name.endswith(spoilt)
