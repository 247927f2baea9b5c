"""Checkpoints are complete or absent, whichever file operation a run is killed at."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.engine import runs
from tests.tiny import ROOT
from xcit_mm.engine.checkpoint import AtomicBackend, AtomicCheckpointHook
from xcit_mm_runtime.files import UNFINISHED

MMENGINES = pytest.param('CheckpointHook', marks=pytest.mark.long)


@pytest.mark.parametrize('hook', [MMENGINES, 'AtomicCheckpointHook'])
def test_killed_at_each_file_operation(hook, tmp_path):
    command = [sys.executable, '-m', 'tests.engine.kill_at_each_operation', hook, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    *_, summary, left = run.stdout.splitlines()
    kills, faults, status = (int(word) for word in summary.split()[1::2])
    assert status == 0 and kills > 10
    assert left == 'left best_acc_epoch_2.pth epoch_2.pth'
    # mmengine's own hook proves that the test finds faults.
    assert (faults == 0) == (hook == 'AtomicCheckpointHook'), run.stdout


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


# A file system of 6 MB that only this script and its children see. With 4 MB taken, there is room
# for two checkpoints of 0.9 MB but not for a third.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=6m tmpfs work
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
    config = runs.write_config(tmp_path, 'seg', small_data, steps=6)
    train = [sys.executable, 'tools/train.py', config, '--work-dir', work_dir, '--seed', '1']
    run = subprocess.run(
        [*IN_A_NAMESPACE, 'bash', '-ec', ON_A_SMALL_DISK, 'bash', *train],
        cwd=tmp_path, env={**os.environ, 'OMP_NUM_THREADS': '1', 'ROOT': str(ROOT)},
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
