"""Each obstacle is real here, and each compat module removes it."""

import os
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as checkpoint_module
from torch import distributed

import xcit_mm  # noqa: F401
from xcit_mm.compat import checkpoints, init_gloo, revert_sync_bn, torchvision_ops

from ..weights.hostile import Call, contents


def python(code, **kwargs):
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, **kwargs)


def test_torchvision_and_timm_import_with_us_and_are_then_left_alone():
    code = 'import xcit_mm, torchvision, timm; from xcit_mm.compat import torchvision_ops as t; '
    assert python(code + 'assert t.apply() is False').returncode == 0
    assert torchvision_ops.apply() is False


RUNNER = """
import {first}
from tests.weights.tiny_run import build
runner = build({work_dir!r}, {epochs}, resume={resume})
runner.train()
"""


def run_runner(work_dir, first='xcit_mm', epochs=1, resume=False):
    code = RUNNER.format(work_dir=str(work_dir), first=first, epochs=epochs, resume=resume)
    return python(code)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The folder of a run that began with importing us."""
    folder = tmp_path_factory.mktemp('run')
    run = run_runner(folder)
    assert run.returncode == 0, run.stderr
    return folder


def test_runner_starts_only_with_us(trained, tmp_path):
    assert (trained / 'epoch_1.pth').is_file()
    run = run_runner(tmp_path, first='mmengine')
    if run.returncode == 0:
        pytest.skip('torchvision matches this torch')
    assert 'operator torchvision::nms does not exist' in run.stderr


def test_mmengine_checkpoint_is_read_with_weights_only_and_resumed(trained):
    checkpoint = trained / 'epoch_1.pth'
    # Without the allow-list torch refuses what mmengine wrote.
    refused = python(f'import torch; torch.load({str(checkpoint)!r}, weights_only=True)')
    assert 'HistoryBuffer' in refused.stderr
    content = torch.load(checkpoint, weights_only=True)
    history = content['message_hub']['log_scalars']['train/loss']
    assert history.mean() == pytest.approx(history.data[0].mean())
    resumed = run_runner(trained, epochs=2, resume=True)
    assert resumed.returncode == 0, resumed.stderr
    assert (trained / 'epoch_2.pth').is_file()


HOSTILE = 'array of nothing', 'field behind the end', 'pointers', 'short array', 'long array'


def test_stand_ins_build_numbers_and_histories_and_nothing_else(tmp_path):
    """Here for torch, with which stock tools read; our own reader is tested with the weights."""
    hostile = {name: content for name, content in contents().items() if name in HOSTILE}
    hostile['history of lists'] = Call(HistoryBuffer, state={'_log_history': [], 'max_length': 1})
    for name, content in hostile.items():
        torch.save({'meta': content}, tmp_path / 'x.pth')
        with pytest.raises(Exception, match=r'number|size|unknown way|_count_history'):
            torch.load(tmp_path / 'x.pth', weights_only=True)
            pytest.fail(name)
    torch.save({'meta': Call(getattr, HistoryBuffer, '__init__')}, tmp_path / 'x.pth')
    assert torch.load(tmp_path / 'x.pth', weights_only=True) == {'meta': None}


def test_torchs_allow_list_is_left_alone_where_it_is_not_needed(monkeypatch):
    added = []
    monkeypatch.setattr(torch.serialization, 'add_safe_globals', added.extend)
    with monkeypatch.context() as older:
        older.setattr(torch, '__version__', '2.1.2+cpu')
        checkpoints.apply()
    with monkeypatch.context() as fork:
        fork.setattr(checkpoint_module, 'get_torch_safe_globals', list, raising=False)
        checkpoints.apply()
    assert added == []
    checkpoints.apply()
    assert len(added) == len(checkpoints.STAND_INS)


@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_sync_bn_becomes_bn_and_only_that():
    cfg = Config(
        dict(
            norm_cfg=dict(type='SyncBN', requires_grad=True),
            heads=[dict(norm_cfg=dict(type='SyncBN')), dict(norm_cfg=dict(type='GN'))],
        )
    )
    assert revert_sync_bn(cfg) == 2
    assert cfg.norm_cfg == dict(type='BN', requires_grad=True)
    assert [head.norm_cfg.type for head in cfg.heads] == ['BN', 'GN']
    assert revert_sync_bn(cfg) == 0


GLOO = """
import sys
import torch
from torch import distributed
from mmengine.config import Config
from mmcv.cnn import build_norm_layer
import xcit_mm
from xcit_mm.compat import init_gloo, revert_sync_bn
from mmengine.dist import init_dist, get_dist_info
launcher = sys.argv[1]
try:
    init_dist(launcher)
except Exception as error:
    print('mmengine:', type(error).__name__)
run = Config(dict(launcher=launcher))
init_gloo(run)
init_gloo(run)
assert run.model_wrapper_cfg.device_ids is None
rank, world_size = get_dist_info()
total = torch.tensor([float(rank + 1)])
distributed.all_reduce(total)
assert (world_size, total.item()) == (2, 3.0)
x = torch.randn(2, 4, 3, 3)
cfg = Config(dict(norm_cfg=dict(type='SyncBN')))
try:
    build_norm_layer(dict(cfg.norm_cfg), 4)[1](x)
    raise SystemExit('SyncBN works here: the obstacle is gone')
except ValueError:
    pass
revert_sync_bn(cfg)
build_norm_layer(dict(cfg.norm_cfg), 4)[1](x)
print('rank', rank, 'done')
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
@pytest.mark.parametrize('launcher', ['pytorch', pytest.param('mpi', marks=pytest.mark.long)])
def test_two_processes_with_gloo_where_mmengine_and_sync_bn_fail(launcher, free_port):
    mpi = ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK')
    names = mpi if launcher == 'mpi' else ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')
    runs = []
    for rank in range(2):
        env = dict(zip(names, (str(rank), '2', str(rank)), strict=True))
        env |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port)}
        command = [sys.executable, '-c', GLOO, launcher]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        runs.append(subprocess.Popen(command, env=os.environ | env, **pipes))
    for rank, run in enumerate(runs):
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert 'mmengine:' in out and f'rank {rank} done' in out


def test_gloo_without_its_launcher_says_so():
    alone = Config({'launcher': 'none'})
    init_gloo(alone)
    assert not distributed.is_initialized() and 'model_wrapper_cfg' not in alone
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='SLURM_PROCID'):
            init_gloo(Config({'launcher': 'slurm'}))
        with pytest.raises(ValueError, match='launcher must be'):
            init_gloo(Config({'launcher': 'ssh'}))
