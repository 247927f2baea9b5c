"""Training through tools/train.py, killed again and again and resumed with --resume."""

import random
import signal
import time

import pytest
from mmengine.runner import find_latest_checkpoint

from tests.engine import runs
from xcit_mm.engine.checkpoint import UNFINISHED

NO_WORKERS = [
    '--cfg-options',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
]


def kill_while_starting(process, work_dir, chance):
    """Kill it in the first seconds: imports, building, reading the checkpoint."""
    time.sleep(chance.uniform(0, 8))
    assert process.poll() is None
    runs.kill(process)


def wait_for_steps(process, work_dir, chance):
    """Wait until one to three more steps are saved."""
    step = runs.saved_step(work_dir) + chance.randint(1, 3)
    assert runs.wait_for(lambda: runs.saved_step(work_dir) >= step, process)


def kill_while_training(process, work_dir, chance):
    """Kill it at a random time after a few steps: in forward, backward, validation or a save."""
    wait_for_steps(process, work_dir, chance)
    time.sleep(chance.uniform(0, 0.15))
    assert process.poll() is None
    runs.kill(process)


def kill_while_writing(process, work_dir, chance):
    """Kill it while a checkpoint does not have its final name yet."""
    wait_for_steps(process, work_dir, chance)

    def is_writing():
        return any(work_dir.glob('*.pth' + UNFINISHED))

    while True:
        assert runs.wait_for(is_writing, process)
        process.send_signal(signal.SIGSTOP)  # it must not finish before we check again
        time.sleep(0.01)
        if is_writing():
            break
        process.send_signal(signal.SIGCONT)
    runs.kill(process)
    assert is_writing()


def check_readable(work_dir):
    """Check that every checkpoint is complete, above all the one that a resumed run would use."""
    chosen = find_latest_checkpoint(str(work_dir))
    paths = {str(path) for path in work_dir.glob('*.pth')}
    assert chosen is None or chosen in paths
    for path in paths:
        content = runs.load(path)
        assert content['state_dict'] and content['optimizer'] and content['param_schedulers']


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
        check_readable(work_dir)
    status, printed = runs.run(work_dir, config, '--resume', *arguments)
    assert status == 0, printed[-3000:]
    assert ', resumed after ' in printed
    assert not list(work_dir.glob('*' + UNFINISHED))


FEW = [kill_while_writing]
SOME = [*FEW, kill_while_training, kill_while_writing]
MANY = [kill_while_training, *SOME, kill_while_starting] * 4 + SOME
long = pytest.mark.long


@pytest.mark.parametrize(
    'kills, steps',
    [(FEW, 12), pytest.param(MANY, 120, marks=long)],
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


@long
def test_a_killed_run_without_a_seed_keeps_its_random_seed(small_data, tmp_path):
    config = runs.write_config(tmp_path, runs.DETECTOR, small_data, steps=30)
    disturbed_run(tmp_path / 'killed', config, [], SOME + FEW)
    killed = tmp_path / 'killed' / 'epoch_30.pth'
    seed = runs.load(killed)['meta']['seed']
    status, printed = runs.run(tmp_path / 'undisturbed', config, '--seed', seed)
    assert status == 0, printed[-3000:]
    undisturbed = tmp_path / 'undisturbed' / 'epoch_30.pth'
    assert not runs.differences(runs.trained(undisturbed), runs.trained(killed))
