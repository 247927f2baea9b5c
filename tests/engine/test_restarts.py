"""MAX_RESTARTS of tools/dist_train.sh: a run restarts and resumes by itself, to the same end."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config

from tests.engine import runs
from xcit_mm.errors import UserError
from xcit_mm_cli import parse_args
from xcit_mm_cli.train import choose_start
from xcit_mm_runtime.files import UNFINISHED

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
SEED = ['--seed', '1']


def start_of(work_dir, argument):
    """Whether a run resumes, and which weights it loads otherwise."""
    cfg = Config(dict(work_dir=str(work_dir), resume=False, load_from='weights.pth'))
    choose_start(cfg, argument)
    return cfg.resume, cfg.load_from


def test_a_run_that_may_be_restarted_always_resumes(tmp_path, monkeypatch):
    # Killed before the first checkpoint, it starts as it did.
    assert start_of(tmp_path, 'auto') == (False, 'weights.pth')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '3')
    assert start_of(tmp_path, None) == (False, 'weights.pth')
    (tmp_path / 'last_checkpoint').write_text('iter_1.pth')
    assert start_of(tmp_path, None) == (True, None)
    assert start_of(tmp_path, 'auto') == (True, None)
    with pytest.raises(UserError, match='leave out --resume'):
        start_of(tmp_path, 'iter_1.pth')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '0')  # of torchrun without restarts
    assert start_of(tmp_path, None) == (False, 'weights.pth')
    assert start_of(tmp_path, 'auto') == (True, None)


def torchrun_arguments(words, **env):
    """What tools/dist_train.sh would start."""
    run = subprocess.run(
        ['tools/dist_train.sh', *words],
        cwd=runs.ROOT, env={**os.environ, 'PYTHON': 'echo', **env}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_the_examples_start_dist_train(tmp_path):
    service, job = yaml.safe_load_all((runs.ROOT / 'examples/kubernetes.yaml').read_text())
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
    assert (runs.ROOT / container['command'][1]).is_file()
    started = torchrun_arguments(container['command'][1:], **env)
    assert {'--nnodes=2', '--max-restarts=100', '--rdzv-endpoint=xcit-0.xcit:29500'} <= {*started}
    parse_args('train', started[started.index('tools/train.py') + 1 :])

    # Slurm: its commands are replaced, for they exist only there.
    for command, body in (('scontrol', 'echo first; echo second'), ('srun', 'shift; exec "$@"')):
        (tmp_path / command).write_text(f'#!/bin/bash\n{body}\n')
        (tmp_path / command).chmod(0o755)
    slurm = dict(SLURM_JOB_ID='7', SLURM_NNODES='2', SLURM_NODEID='1', SLURM_JOB_NODELIST='n[1-2]')
    slurm |= dict(SLURM_GPUS_ON_NODE='4', PYTHON='echo', PATH=f'{tmp_path}:{os.environ["PATH"]}')
    run = subprocess.run(
        ['examples/slurm.sh', 'CONFIG', 'WORK_DIR', '--amp'],
        cwd=runs.ROOT, env={**os.environ, **slurm}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '--nnodes=2 --nproc_per_node=4 --max-restarts=100' in run.stdout
    assert '--rdzv-endpoint=first:20007 --rdzv-conf=is_host=0,' in run.stdout
    assert run.stdout.endswith('CONFIG --launcher pytorch --work-dir WORK_DIR --amp\n')


class Worker:
    """One of the processes that a launcher started, with what the kills need of ``Popen``."""

    def __init__(self, pid, launcher):
        self.pid, self.launcher = pid, launcher

    def poll(self):
        return None if self.pid in children(self.launcher) else -1

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout):
        assert runs.wait_for(lambda: self.poll() is not None, self.launcher, timeout)


def children(launcher):
    """The processes of a launcher, in the order of their ranks."""
    listed = Path(f'/proc/{launcher.pid}/task/{launcher.pid}/children')
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def is_alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    return False


def new_workers(launcher, count, old=()):
    """Wait until all processes have been started again."""

    def are_there():
        pids = children(launcher)
        return len(pids) == count and not set(pids) & set(old)

    assert runs.wait_for(are_there, launcher)
    return [Worker(pid, launcher) for pid in children(launcher)]


def dist_train(work_dir, config, processes, port, *options, **env):
    return runs.start(
        work_dir, *SEED, *options,
        executable='bash', launch=('tools/dist_train.sh', config, processes),
        env={'PYTHON': sys.executable, 'PORT': str(port), **env},
    )  # fmt: skip


def end(launcher):
    """End a launcher and its processes, which have sessions of their own, as a power cut does."""
    pids = [*children(launcher), launcher.pid]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.wait(timeout=60)


def killed_run(work_dir, config, port, kills, *options):
    """One command that restarts itself after each of the kills, and not once more."""
    chance = random.Random(0)
    launcher = dist_train(work_dir, config, 2, port, *options, MAX_RESTARTS=str(len(kills)))
    try:
        workers = new_workers(launcher, 2)
        for kill in kills:
            # Only the first one writes.
            number = 0 if kill is runs.kill_while_writing else chance.randrange(2)
            kill(workers[number], work_dir, chance)
            runs.check_readable(work_dir)
            workers = new_workers(launcher, 2, old=[worker.pid for worker in workers])
        assert launcher.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    finally:
        end(launcher)


def check_same(tmp_path, config, port, steps, *options):
    """Compare with an undisturbed run, and look for leftovers."""
    whole = dist_train(tmp_path / 'whole', config, 2, port, *options)
    try:
        assert whole.wait(timeout=600) == 0, runs.printed(tmp_path / 'whole')[-3000:]
    finally:
        end(whole)
    one, two = (runs.trained(tmp_path / d / f'iter_{steps}.pth') for d in ('whole', 'killed'))
    assert not runs.differences(one, two)
    assert not list((tmp_path / 'killed').glob('*' + UNFINISHED))
    assert runs.printed(tmp_path / 'killed').count('resumed after') >= 1


KILLS = [
    runs.kill_while_starting,  # before the first checkpoint
    runs.kill_while_training,
    runs.kill_while_writing,
    runs.kill_while_training,
]


@on_cpu
@pytest.mark.long
def test_a_run_with_four_killed_workers_ends_with_the_same_weights(small_data, tmp_path, free_port):
    steps = 30
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps)
    killed_run(tmp_path / 'killed', config, free_port, KILLS)
    check_same(tmp_path, config, free_port, steps)


@on_cpu
@pytest.mark.long
def test_a_killed_sharded_run_ends_with_the_weights_of_ddp(small_data, tmp_path, free_port):
    steps = 20
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps)
    sharded = ['--cfg-options', 'model_wrapper_cfg.type=FullySharded']
    kills = [runs.kill_while_training, runs.kill_while_writing]
    killed_run(tmp_path / 'killed', config, free_port, kills, *sharded)
    # Sharded modules run one by one.
    plain = ['--cfg-options', 'model.backbone.fast=False']
    check_same(tmp_path, config, free_port, steps, *plain)


@on_cpu
@pytest.mark.long
@pytest.mark.parametrize('lost', [1, 0], ids=['second', 'first'])
def test_a_machine_that_comes_back_takes_part_again(lost, small_data, tmp_path, free_port):
    steps = 30
    config = runs.write_config(tmp_path, runs.SEGMENTOR, small_data, steps)
    work_dir = tmp_path / 'killed'

    def start(rank):
        return dist_train(
            work_dir, config, 1, free_port,
            NNODES='2', NODE_RANK=str(rank), MAX_RESTARTS='5', LOCAL_ADDR='127.0.0.1',
        )  # fmt: skip

    machines = [start(0), start(1)]
    try:
        assert runs.wait_for(lambda: runs.saved_step(work_dir) >= 3, machines[0])
        orphans = children(machines[lost])
        machines[lost].kill()
        assert runs.wait_for(lambda: not any(map(is_alive, orphans)), timeout=60)
        if lost == 0:  # it kept the list, so the other one ends and its scheduler restarts it too
            assert machines[1].wait(timeout=120) != 0
            machines[1] = start(1)
        time.sleep(1)
        machines[lost] = start(lost)
        for machine in machines:
            assert machine.wait(timeout=600) == 0, runs.printed(work_dir)[-3000:]
    finally:
        for machine in machines:
            end(machine)
    check_same(tmp_path, config, free_port, steps)
