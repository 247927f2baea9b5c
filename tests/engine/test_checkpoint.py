"""Checkpoints are complete or absent, whichever file operation a run is killed at."""

import errno
import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config

from tests.engine import runs
from xcit_mm.engine.checkpoint import (
    UNFINISHED,
    AtomicBackend,
    AtomicCheckpointHook,
    write_atomically,
)
from xcit_mm.errors import UserError
from xcit_mm.weights import CheckpointError, use_strict_reader
from xcit_mm_cli.train import keep_seed

# Trains with a checkpoint per epoch, in a child that kills itself just before its n-th call of a
# function that changes files, for n = 0, 1, 2... until a child reaches the end. After each kill it
# checks what a resumed run would find.
KILLED_AT_EACH_OPERATION = """
import os, shutil, signal, sys
from pathlib import Path
import torch, xcit_mm
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner, find_latest_checkpoint

torch.set_num_threads(1)
hook, work_dir = sys.argv[1], Path(sys.argv[2])

class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
    def forward(self, inputs, mode='tensor'):
        loss = self.linear(torch.stack(inputs)).sum()
        return dict(loss=loss) if mode == 'loss' else [dict(score=0)]

class Score(BaseMetric):
    count = 0
    def process(self, data_batch, data_samples):
        self.results.append(0)
    def compute_metrics(self, results):
        self.count += 1
        return dict(acc=self.count)

def loader():
    return dict(dataset=[dict(inputs=torch.ones(1))] * 2, batch_size=2,
                sampler=dict(type='DefaultSampler', shuffle=False))

runner = Runner(
    Model(), work_dir=str(work_dir), experiment_name='run', train_dataloader=loader(),
    train_cfg=dict(by_epoch=True, max_epochs=2), val_dataloader=loader(), val_cfg=dict(),
    val_evaluator=[Score()], optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
    default_hooks=dict(logger=None, checkpoint=dict(
        type=hook, interval=1, max_keep_ckpts=1, save_best='acc', rule='greater')))

CALLS = ('open', 'write', 'flush', 'fsync', 'replace', 'rename', 'unlink', 'remove')
FILES = ('checkpoint', 'xcit_mm/files', 'local_backend', 'pathlib')

def kill_at(number):
    count = 0
    def profile(frame, event, function):
        nonlocal count
        if event == 'c_call' and function.__name__ in CALLS:
            if any(name in frame.f_code.co_filename for name in FILES):
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
    sys.setprofile(profile)

def what_is_wrong(best_before):
    last = find_latest_checkpoint(str(work_dir))
    try:
        if last is not None:
            torch.load(last, weights_only=True)
        for path in work_dir.glob('*.pth'):
            torch.load(path, weights_only=True)
    except Exception as error:
        return type(error).__name__
    kept = list(work_dir.glob('best_*.pth'))
    return 'no best' if best_before and not kept else ''

number = faults = 0
best_before = False
while True:
    for path in [*work_dir.glob('*.pth*'), work_dir / 'last_checkpoint']:
        path.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        kill_at(number)
        runner.train()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    wrong = what_is_wrong(best_before)
    faults += bool(wrong)
    best_before = best_before or any(work_dir.glob('best_*.pth'))
    print('operation', number, wrong or 'good', flush=True)
    if not os.WIFSIGNALED(status):
        break
    number += 1
print('kills', number, 'faults', faults, 'status', status)
print('left', *sorted(path.name for path in work_dir.glob('*.pth*')))
"""


MMENGINES = pytest.param('CheckpointHook', marks=pytest.mark.long)


@pytest.mark.parametrize('hook', [MMENGINES, 'AtomicCheckpointHook'])
def test_killed_at_each_file_operation(hook, tmp_path):
    run = subprocess.run(
        [sys.executable, '-c', KILLED_AT_EACH_OPERATION, hook, str(tmp_path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    *_, summary, left = run.stdout.splitlines()
    kills, faults, status = (int(word) for word in summary.split()[1::2])
    assert status == 0 and kills > 10
    assert left == 'left best_acc_epoch_2.pth epoch_2.pth'
    # mmengine's own hook proves that the test finds faults.
    assert (faults == 0) == (hook == 'AtomicCheckpointHook'), run.stdout


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / 'file'
    write_atomically(path, b'old')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            write_atomically(path, b'new' * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == b'old' and os.listdir(tmp_path) == ['file']
    write_atomically(path, b'new' * 1000)
    assert path.read_bytes() == b'new' * 1000 and os.listdir(tmp_path) == ['file']


@pytest.mark.parametrize('name, left', [('new', ['new']), ('old', ['old'])])
def test_a_best_checkpoint_of_the_same_name_is_kept(name, left, tmp_path):
    """mmengine calls it by the epoch, which an iteration-based run may not leave."""
    backend = AtomicBackend()
    backend.put(b'1', tmp_path / 'old')
    with backend.removals_last():
        backend.remove(tmp_path / 'old')
        AtomicBackend().put(b'2', tmp_path / name)
        assert (tmp_path / 'old').is_file()
    assert os.listdir(tmp_path) == left and (tmp_path / name).read_bytes() == b'2'


def test_other_backends_are_left_alone():
    assert AtomicCheckpointHook().backend_args == dict(backend='atomic')
    assert AtomicCheckpointHook(out_dir='s3://bucket').backend_args is None
    assert AtomicCheckpointHook(backend_args=dict(backend='x')).backend_args == dict(backend='x')


# A file system of 9 MB that only this script and its children see. With 4 MB taken, there is room
# for two checkpoints of 2 MB but not for a third.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=9m tmpfs work
head -c 4000000 /dev/zero > work/filler
status=0; (cd "$ROOT" && "$@") > full.txt 2>&1 || status=$?
cp -r work full
rm work/filler
(cd "$ROOT" && "$@" --resume) > resumed.txt 2>&1
cp -r work resumed
exit $status
"""
IN_A_NAMESPACE = ['unshare', '--user', '--map-root-user', '--mount']


def can_mount():
    command = [*IN_A_NAMESPACE, 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']
    return bool(shutil.which('unshare')) and subprocess.run(command, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason='no file system can be mounted here')
def test_a_full_disk_leaves_the_last_checkpoint_and_a_clear_message(small_data, tmp_path):
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps=6)
    train = [sys.executable, 'tools/train.py', config, '--work-dir', work_dir, '--seed', '1']
    run = subprocess.run(
        [*IN_A_NAMESPACE, 'bash', '-ec', ON_A_SMALL_DISK, 'bash', *train],
        cwd=tmp_path, env={**os.environ, 'OMP_NUM_THREADS': '1', 'ROOT': str(runs.ROOT)},
        timeout=900,
    )  # fmt: skip
    printed = (tmp_path / 'full.txt').read_text()
    assert run.returncode == 2, printed[-3000:]
    error = printed[printed.index('\nerror: ') :]
    assert f'{work_dir}/iter_3.pth could not be written: No space left on device' in error
    assert f'The last checkpoint, {work_dir}/iter_2.pth, is complete' in error
    assert 'Traceback' not in printed
    assert (tmp_path / 'full' / 'last_checkpoint').read_text() == f'{work_dir}/iter_2.pth'
    assert runs.load(tmp_path / 'full' / 'iter_2.pth')['meta']['iter'] == 2
    assert not list((tmp_path / 'full').glob('*' + UNFINISHED))
    resumed = (tmp_path / 'resumed.txt').read_text()
    assert (tmp_path / 'resumed' / 'iter_6.pth').is_file(), resumed[-3000:]


def test_a_resumed_run_keeps_the_seed_of_its_checkpoint(tmp_path):
    use_strict_reader()

    def seed_of(**settings):
        cfg = Config(dict(work_dir=str(tmp_path), **settings))
        keep_seed(cfg)
        return cfg.get('randomness', {}).get('seed')

    path = tmp_path / 'iter_1.pth'
    torch.save(dict(meta=dict(seed=7)), path)
    assert seed_of(resume=True) is None  # nothing to resume from
    (tmp_path / 'last_checkpoint').write_text(str(path))
    assert seed_of() is None
    assert seed_of(resume=True) == 7
    assert seed_of(resume=True, load_from=str(path), randomness=dict(deterministic=True)) == 7
    assert seed_of(resume=True, randomness=dict(seed=3)) == 7
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r'iter_1\.pth'):
        seed_of(resume=True)
    path.unlink()
    with pytest.raises(UserError, match='There is no checkpoint'):
        seed_of(resume=True)
