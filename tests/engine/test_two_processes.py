"""If one of two gloo processes is lost, the other ends too, and the run can be resumed."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.engine import runs

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
ENDLESS = 10_000
# A lost process closes its connections, which the other one notices at once. On a busy machine it
# still needs time to end.
BOUND = 60


def start_two(work_dir, config, port, *options):
    """Two plain processes, as any launcher starts them, but without supervision."""
    common = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}
    arguments = [config, '--seed', '1', '--launcher', 'pytorch', *options]
    return [
        runs.start(work_dir, *arguments, env={**common, 'RANK': str(r), 'LOCAL_RANK': str(r)})
        for r in range(2)
    ]


def lose_one(work_dir, processes, how):
    """Disturb the second process after two steps, and wait until the first one ends too."""
    first, second = processes
    try:
        assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 2, first)
        second.send_signal(how)
        assert first.wait(timeout=BOUND) not in (0, -signal.SIGKILL)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def dist_train(work_dir, config, port, *options):
    return runs.start(
        work_dir, '--seed', '1', *options, executable='bash',
        launch=('tools/dist_train.sh', config, '2'),
        env={'PYTHON': sys.executable, 'PORT': str(port)},
    )  # fmt: skip


@pytest.mark.long
def test_a_process_whose_peer_is_killed_ends_and_both_resume(small_data, tmp_path, free_port):
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, ENDLESS)
    work_dir = tmp_path / 'work'
    lose_one(work_dir, start_two(work_dir, config, free_port), signal.SIGKILL)
    assert re.search('Connection (closed|reset) by peer', runs.printed(work_dir))
    last = runs.saved_step(work_dir) + 3
    run = dist_train(
        work_dir, config, free_port, '--resume', '--cfg-options', f'train_cfg.max_iters={last}'
    )
    assert run.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    assert runs.load(work_dir / f'iter_{last}.pth')['meta']['iter'] == last


@pytest.mark.long
def test_a_process_whose_peer_hangs_gives_up_after_the_timeout(small_data, tmp_path, free_port):
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, ENDLESS)
    work_dir = tmp_path / 'work'
    # Both processes must also start within this time of each other.
    timeout = ['--cfg-options', 'env_cfg.dist_cfg.timeout=20']
    lose_one(work_dir, start_two(work_dir, config, free_port, *timeout), signal.SIGSTOP)
    assert 'Timed out waiting 20000ms' in runs.printed(work_dir)


@pytest.mark.long
def test_the_launcher_ends_too(small_data, tmp_path, free_port):
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, ENDLESS)
    work_dir = tmp_path / 'work'
    launcher = dist_train(work_dir, config, free_port)
    assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 2, launcher)
    listed = Path(f'/proc/{launcher.pid}/task/{launcher.pid}/children').read_text()
    processes = [int(pid) for pid in listed.split()]
    try:
        os.kill(processes[-1], signal.SIGKILL)
        assert launcher.wait(timeout=BOUND) != 0
        assert not any(Path(f'/proc/{pid}').exists() for pid in processes)
    finally:
        for pid in [launcher.pid, *processes]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
