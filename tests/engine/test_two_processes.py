"""If one of two gloo processes is lost, the other ends too, and the run can be resumed."""

import contextlib
import os
import re
import signal
import sys
import time
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
    """Disturb the second process after two steps; returns how long the first one kept running."""
    first, second = processes
    try:
        assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 2, first)
        second.send_signal(how)
        began = time.monotonic()
        status = first.wait(timeout=BOUND)
        assert status not in (0, -signal.SIGKILL)
        return time.monotonic() - began
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


def kill_one(tmp_path, small_data, port):
    """Start two processes and kill the second; returns the config and the work folder."""
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, ENDLESS)
    work_dir = tmp_path / 'work'
    lose_one(work_dir, start_two(work_dir, config, port), signal.SIGKILL)
    assert re.search('Connection (closed|reset) by peer', runs.printed(work_dir))
    return config, work_dir


@pytest.mark.long
def test_a_process_whose_peer_is_killed_ends(small_data, tmp_path, free_port):
    _, work_dir = kill_one(tmp_path, small_data, free_port)
    assert runs.saved_step(work_dir) >= 2


@pytest.mark.long
def test_two_processes_resume_after_one_was_killed(small_data, tmp_path, free_port):
    config, work_dir = kill_one(tmp_path, small_data, free_port)
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
    timeout = ['--cfg-options', 'env_cfg.dist_cfg.timeout=10']
    seconds = lose_one(work_dir, start_two(work_dir, config, free_port, *timeout), signal.SIGSTOP)
    assert seconds > 8
    assert 'Timed out' in runs.printed(work_dir)


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
