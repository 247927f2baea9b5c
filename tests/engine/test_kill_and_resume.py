"""Runs that are killed, restart or lose a process end with the weights of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from mmengine.config import Config

from tests.engine import runs
from tests.tiny import ROOT
from xcit_mm.engine.training import choose_start
from xcit_mm.errors import UserError
from xcit_mm_cli import parse_args
from xcit_mm_runtime.files import UNFINISHED

long = pytest.mark.long
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
SEED = ['--seed', '1']
SHARDED = ['--cfg-options', 'model_wrapper_cfg.type=FullySharded']
NO_WORKERS = [
    '--cfg-options',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
]

FEW = [runs.kill_while_writing]
SOME = [*FEW, runs.kill_while_training, runs.kill_while_writing]
MANY = [runs.kill_while_training, *SOME, runs.kill_while_starting, *SOME]


def disturbed_run(work_dir, config, kills):
    """Train to the end, with a kill in each of the given ways; only the first run gets a seed."""
    chance = random.Random(0)
    options = SEED
    for number, kill in enumerate(kills, 1):
        process = runs.start(work_dir, config, '--resume', *options)
        try:
            kill(process, work_dir, chance)
        finally:
            process.kill()
        runs.check_readable(work_dir)
        options = NO_WORKERS if number % 2 else []
    check_end(runs.start(work_dir, config, '--resume'), work_dir)
    assert ', resumed after ' in runs.printed(work_dir)
    assert not list(work_dir.glob('*' + UNFINISHED))


def check_end(process, work_dir):
    """Wait for the end of a run, which must succeed."""
    try:
        assert process.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    finally:
        runs.end(process)


@pytest.mark.parametrize(
    'task, kills, steps',
    [
        ('seg', FEW, 12),
        pytest.param('seg', MANY, 60, marks=long),
        pytest.param('det', SOME[1:], 20, marks=long),
    ],
    ids=['few', 'many', 'epochs'],
)
def test_killed_runs_end_with_the_weights_of_an_undisturbed_run(
    task, kills, steps, small_data, tmp_path
):
    config = runs.write_config(tmp_path, task, small_data, steps)
    undisturbed = runs.start(tmp_path / 'undisturbed', config, *SEED)
    try:
        disturbed_run(tmp_path / 'killed', config, kills)
    finally:
        check_end(undisturbed, tmp_path / 'undisturbed')
    (last,) = (tmp_path / 'undisturbed').glob(f'*_{steps}.pth')
    runs.check_same_training(last, tmp_path / 'killed' / last.name)
    kept = sorted(int(path.stem.split('_')[1]) for path in (tmp_path / 'killed').glob('*.pth'))
    assert kept == [steps - 1, steps]


@pytest.mark.skipif(sys.platform != 'linux', reason='Linux ends them')
def test_a_terminated_run_leaves_no_data_workers_behind(small_data, tmp_path):
    config = runs.write_config(tmp_path, 'seg', small_data, steps=1000)
    options = ['--no-validate', '--cfg-options', 'train_dataloader.num_workers=2']
    process, workers = runs.start(tmp_path / 'run', config, *options), []
    try:
        assert runs.wait_for(lambda: runs.saved_step(tmp_path / 'run') > 1, process)
        workers = runs.children(process)
        process.terminate()
        process.wait(timeout=60)
        time.sleep(1)
        assert len(workers) >= 2 and not any(map(runs.is_alive, workers))
    finally:
        runs.end(process, workers)


def start_of(work_dir, argument):
    """Return whether a run resumes, and which weights it loads otherwise."""
    cfg = Config(dict(work_dir=str(work_dir), resume=False, load_from='weights.pth'))
    choose_start(cfg, argument)
    return cfg.resume, cfg.load_from


def test_a_run_that_may_be_restarted_always_resumes(tmp_path, monkeypatch):
    # Killed before the first checkpoint, it starts as it did.
    assert start_of(tmp_path, 'auto') == (False, 'weights.pth')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '3')
    assert start_of(tmp_path, None) == (False, 'weights.pth')
    (tmp_path / 'last_checkpoint').write_text('iter_1.pth')
    assert start_of(tmp_path, None) == start_of(tmp_path, 'auto') == (True, None)
    with pytest.raises(UserError, match='leave out --resume'):
        start_of(tmp_path, 'iter_1.pth')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '0')  # of torchrun without restarts
    assert start_of(tmp_path, None) == (False, 'weights.pth')
    assert start_of(tmp_path, 'auto') == (True, None)


def test_the_examples_start_dist_train(tmp_path):
    def output(*command, **env):
        """Return what would be started, in place of starting it."""
        env = {**os.environ, 'PYTHON': 'echo', **env}
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
        ).stdout

    service, job = yaml.safe_load_all((ROOT / 'examples/kubernetes.yaml').read_text())
    spec, name = job['spec'], job['metadata']['name']
    pod = spec['template']['spec']
    (container,) = pod['containers']
    env = {entry['name']: entry.get('value', '0') for entry in container['env']}
    assert spec['completionMode'] == 'Indexed'
    assert spec['completions'] == spec['parallelism'] == int(env['NNODES'])
    assert service['metadata']['name'] == pod['subdomain']
    assert env['MASTER_ADDR'] == f'{name}-0.{pod["subdomain"]}'
    assert service['spec']['ports'][0]['port'] == int(env['PORT'])
    assert container['command'][0] == 'tools/dist_train.sh'
    assert (ROOT / container['command'][1]).is_file()
    started = output(*container['command'], **env).split()
    assert {'--nnodes=2', '--max-restarts=100', '--rdzv-endpoint=xcit-0.xcit:29500'} <= {*started}
    parse_args('train', started[started.index('tools/train.py') + 1 :])

    # Slurm: its commands are replaced, for they exist only there.
    for command, body in (('scontrol', 'echo first; echo second'), ('srun', 'shift; exec "$@"')):
        (tmp_path / command).write_text(f'#!/bin/bash\n{body}\n')
        (tmp_path / command).chmod(0o755)
    slurm = dict(SLURM_JOB_ID='7', SLURM_NNODES='2', SLURM_NODEID='1', SLURM_JOB_NODELIST='n[1-2]')
    slurm |= dict(SLURM_GPUS_ON_NODE='4', PATH=f'{tmp_path}:{os.environ["PATH"]}')
    printed = output('examples/slurm.sh', 'CONFIG', 'WORK_DIR', '--amp', **slurm)
    assert '--nnodes=2 --nproc_per_node=4 --max-restarts=100' in printed
    assert '--rdzv-endpoint=first:20007 --rdzv-conf=is_host=0,' in printed
    assert printed.endswith('CONFIG --launcher pytorch --work-dir WORK_DIR --amp\n')


class Worker:
    """One of the processes that a launcher started, with what the kills need of ``Popen``."""

    def __init__(self, pid, launcher):
        self.pid, self.launcher = pid, launcher

    def poll(self):
        return None if self.pid in runs.children(self.launcher) else -1

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout):
        assert runs.wait_for(lambda: self.poll() is not None, self.launcher, timeout)


def new_workers(launcher, count, old=()):
    """Wait until all processes have been started again."""

    def are_there():
        pids = runs.children(launcher)
        return len(pids) == count and not set(pids) & {worker.pid for worker in old}

    assert runs.wait_for(are_there, launcher)
    return [Worker(pid, launcher) for pid in runs.children(launcher)]


def check_same(tmp_path, config, port, steps, *options):
    """Compare with an undisturbed run, and look for leftovers."""
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    check_end(runs.dist_train(whole, config, 2, port, *options), whole)
    runs.check_same_training(whole / f'iter_{steps}.pth', killed / f'iter_{steps}.pth')
    assert not list(killed.glob('*' + UNFINISHED))
    assert runs.printed(killed).count('resumed after') >= 1


@on_cpu
@long
@pytest.mark.parametrize('options', [[], SHARDED], ids=['ddp', 'sharded'])
def test_a_run_restarts_itself_after_each_of_four_kills(options, small_data, tmp_path, free_port):
    steps, work_dir, chance = 30, tmp_path / 'killed', random.Random(0)
    config = runs.write_config(tmp_path, 'seg', small_data, steps)
    # The first one is before the first checkpoint.
    kills = [runs.kill_while_starting, runs.kill_while_training, *SOME[:2]]
    restarts = dict(MAX_RESTARTS=str(len(kills)))  # and not once more
    launcher = runs.dist_train(work_dir, config, 2, free_port, *options, **restarts)
    try:
        workers = new_workers(launcher, 2)
        for kill in kills:
            # Only the first one writes.
            number = 0 if kill is runs.kill_while_writing else chance.randrange(2)
            kill(workers[number], work_dir, chance)
            runs.check_readable(work_dir)
            workers = new_workers(launcher, 2, workers)
        assert launcher.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    finally:
        runs.end(launcher)
    check_same(tmp_path, config, free_port, steps, *options)


@on_cpu
@long
@pytest.mark.parametrize('lost', [1, 0], ids=['second', 'first'])
def test_a_machine_that_comes_back_takes_part_again(lost, small_data, tmp_path, free_port):
    steps = 30
    config = runs.write_config(tmp_path, 'seg', small_data, steps)
    work_dir = tmp_path / 'killed'

    def start(rank):
        nodes = dict(NNODES='2', NODE_RANK=str(rank), MAX_RESTARTS='5', LOCAL_ADDR='127.0.0.1')
        return runs.dist_train(work_dir, config, 1, free_port, **nodes)

    machines = [start(0), start(1)]
    try:
        assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 3, machines[0])
        orphans = runs.children(machines[lost])
        machines[lost].kill()
        assert runs.wait_for(lambda: not any(map(runs.is_alive, orphans)), timeout=60)
        if lost == 0:  # it kept the list, so the other one ends and its scheduler restarts it too
            assert machines[1].wait(timeout=120) != 0
            machines[1] = start(1)
        time.sleep(1)
        machines[lost] = start(lost)
        for machine in machines:
            assert machine.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    finally:
        for machine in machines:
            runs.end(machine)
    check_same(tmp_path, config, free_port, steps)


@on_cpu
@long
def test_a_process_whose_peer_hangs_gives_up_after_the_timeout(small_data, tmp_path, free_port):
    """Of two plain processes, as any launcher starts them, but without supervision."""
    config = runs.write_config(tmp_path, 'seg', small_data, steps=10_000)
    work_dir = tmp_path / 'work'
    env = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port)}
    # Both processes must also start within this time of each other.
    options = ['--launcher', 'pytorch', '--cfg-options', 'env_cfg.dist_cfg.timeout=20']
    first, second = (
        runs.start(work_dir, config, *options, env={**env, 'RANK': rank, 'LOCAL_RANK': rank})
        for rank in '01'
    )
    try:
        assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 2, first)
        second.send_signal(signal.SIGSTOP)
        assert first.wait(timeout=60) not in (0, -signal.SIGKILL)
        assert 'Timed out waiting 20000ms' in runs.printed(work_dir)
    finally:
        runs.end(first)
        runs.end(second)
