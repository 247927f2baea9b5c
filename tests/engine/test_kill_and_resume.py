"""Training through tools/train.py, killed again and again and resumed with --resume."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.engine import runs
from xcit_mm.engine.checkpoint import UNFINISHED

NO_WORKERS = [
    '--cfg-options',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
]


def disturbed_run(work_dir, config, arguments, kills):
    """Train to the end, with a kill in each of the given ways."""
    chance = random.Random(0)
    for number, kill in enumerate(kills):
        options = NO_WORKERS if number % 2 else []
        process = runs.start(work_dir, config, '--resume', *arguments, *options)
        try:
            kill(process, work_dir, chance)
        finally:
            process.kill()
        runs.check_readable(work_dir)
    status, printed = runs.run(work_dir, config, '--resume', *arguments)
    assert status == 0, printed[-3000:]
    assert ', resumed after ' in printed
    assert not list(work_dir.glob('*' + UNFINISHED))


FEW = [runs.kill_while_writing]
SOME = [*FEW, runs.kill_while_training, runs.kill_while_writing]
MANY = [runs.kill_while_training, *SOME, runs.kill_while_starting, *SOME]
long = pytest.mark.long


@pytest.mark.parametrize(
    'kills, steps',
    [(FEW, 12), pytest.param(MANY, 60, marks=long)],
    ids=[str(len(FEW)), str(len(MANY))],
)
def test_killed_runs_end_with_the_weights_of_an_undisturbed_run(kills, steps, small_data, tmp_path):
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps)
    arguments = ['--seed', '1']
    undisturbed = runs.start(tmp_path / 'undisturbed', config, *arguments)
    try:
        disturbed_run(tmp_path / 'killed', config, arguments, kills)
        assert undisturbed.wait(timeout=600) == 0
    finally:
        undisturbed.kill()
    one, two = (runs.trained(tmp_path / d / f'iter_{steps}.pth') for d in ('undisturbed', 'killed'))
    assert not runs.differences(one, two)
    kept = sorted(path.name for path in (tmp_path / 'killed').glob('*.pth'))
    assert kept == sorted(f'iter_{step}.pth' for step in (steps - 1, steps))


def children(process):
    """The processes that a process has started."""
    lists = Path(f'/proc/{process.pid}/task').glob('*/children')
    return [Path('/proc', number) for path in lists for number in path.read_text().split()]


def is_running(process):
    """Whether a process has not ended; what has ended may wait to be collected."""
    try:
        return 'State:\tZ' not in (process / 'status').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != 'linux', reason='Linux ends them')
def test_a_terminated_run_leaves_no_data_workers_behind(small_data, tmp_path):
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps=1000)
    options = ['--no-validate', '--cfg-options', 'train_dataloader.num_workers=2']
    process, workers = runs.start(tmp_path / 'run', config, *options), []
    try:
        assert runs.wait_for(lambda: runs.saved_step(tmp_path / 'run') > 1, process)
        workers = children(process)
        process.terminate()
        process.wait(timeout=60)
        time.sleep(1)
        assert len(workers) >= 2 and not any(map(is_running, workers))
    finally:
        process.kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(worker.name), signal.SIGKILL)


@long
def test_a_killed_run_without_a_seed_keeps_its_random_seed(small_data, tmp_path):
    config = runs.write_config(tmp_path, runs.DETECTOR, small_data, steps=20)
    disturbed_run(tmp_path / 'killed', config, [], SOME[1:])
    killed = tmp_path / 'killed' / 'epoch_20.pth'
    seed = runs.load(killed)['meta']['seed']
    status, printed = runs.run(tmp_path / 'undisturbed', config, '--seed', seed)
    assert status == 0, printed[-3000:]
    undisturbed = tmp_path / 'undisturbed' / 'epoch_20.pth'
    assert not runs.differences(runs.trained(undisturbed), runs.trained(killed))
