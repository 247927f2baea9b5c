"""Short training runs through the commands, for tests that interrupt them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from tests.tiny import ROOT, merged
from xcit_mm.weights import read_checkpoint
from xcit_mm_runtime.files import UNFINISHED

# An iteration takes a few hundredths of a second and is followed by a checkpoint. Flips, crops,
# dropout, stochastic depth and BatchNorm all get a chance to go wrong.
LOAD = dict(type='LoadImageFromFile')
WARM_UP = dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=5)
SETTINGS = {
    'model.backbone.drop_path_rate': 0.2,
    'optim_wrapper.optimizer.lr': 1e-3,
    'default_hooks.logger.interval': 1,
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.checkpoint.max_keep_ckpts': 2,
    'train_dataloader.batch_size': 2,
    'train_dataloader.persistent_workers': True,
}


def segmentor_settings(steps):
    pipeline = [
        LOAD, dict(type='LoadAnnotations'),
        dict(type='RandomCrop', crop_size=(64, 64)), dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'), dict(type='PackSegInputs'),
    ]  # fmt: skip
    decay = dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=5, end=steps)
    return {
        'train_dataloader.dataset.pipeline': pipeline,
        'train_dataloader.num_workers': 1,
        'train_cfg.max_iters': steps,
        'train_cfg.val_interval': 10,
        'param_scheduler': [WARM_UP, decay],
        'optim_wrapper.clip_grad': dict(max_norm=5.0),
    }


def detector_settings(steps):
    pipeline = [
        LOAD, dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
        dict(type='RandomFlip', prob=0.5),
        dict(type='RandomChoiceResize', scales=[(64, 96), (72, 96), (80, 112)], keep_ratio=True),
        dict(type='PackDetInputs'),
    ]  # fmt: skip
    decay = dict(type='CosineAnnealingLR', begin=0, end=steps, convert_to_iter_based=True)
    unused = {f'val_{part}': None for part in ('cfg', 'dataloader', 'evaluator')}
    return unused | {
        'train_dataloader.dataset.pipeline': pipeline,
        'train_dataloader.num_workers': 2,
        'train_cfg.max_epochs': steps,
        'param_scheduler': [WARM_UP, decay],
    }


TASKS = {'seg': segmentor_settings, 'det': detector_settings}


def write_config(folder, task, data, steps, **settings):
    """Write the config of a tiny segmentor or detector, to be trained for so many steps."""
    cfg = Config.fromstring(merged(task).replace('DATA', str(data)), '.py')
    cfg.merge_from_dict({**SETTINGS, **TASKS[task](steps), **settings})
    path = Path(folder) / 'config.py'
    path.write_text(cfg.pretty_text)
    return path


def start(work_dir, *arguments, env=None, launch=('tools/train.py',), executable=sys.executable):
    """Start a tool; the output of all its runs goes to ``work_dir/output.txt``."""
    work_dir.mkdir(parents=True, exist_ok=True)
    command = [executable, *map(str, launch), *map(str, arguments), '--work-dir', str(work_dir)]
    with (work_dir / 'output.txt').open('ab') as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'OMP_NUM_THREADS': '1', **(env or {})},
        )


def dist_train(work_dir, config, processes, port, *options, **env):
    """Start processes with tools/dist_train.sh."""
    launch = ('tools/dist_train.sh', config, processes)
    env = {'PYTHON': sys.executable, 'PORT': str(port), **env}
    return start(work_dir, '--seed', '1', *options, executable='bash', launch=launch, env=env)


def run(work_dir, *arguments, **kwargs):
    """Run a tool to the end; return its exit status and its output."""
    before = printed(work_dir)
    status = start(work_dir, *arguments, **kwargs).wait(timeout=900)
    return status, printed(work_dir)[len(before) :]


def printed(work_dir):
    path = work_dir / 'output.txt'
    return path.read_text(errors='replace') if path.exists() else ''


def children(process):
    """Return the processes that a process has started, in this order."""
    found = []
    for path in Path(f'/proc/{process.pid}/task').glob('*/children'):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, path.read_text().split())
    return found


def is_alive(pid):
    """Return whether a process has not ended; what has ended may wait to be collected."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return 'State:\tZ' not in Path(f'/proc/{pid}/status').read_text()
    return False


def end(process, others=()):
    """Kill a process, those that it has started, and others, as a power cut does."""
    for pid in (*children(process), *others, process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)


def kill(process):
    process.send_signal(signal.SIGKILL)
    return process.wait(timeout=60)


def saved_step(work_dir):
    """Return the step of the checkpoint that ``--resume`` would choose, or 0."""
    if not (work_dir / 'last_checkpoint').exists():
        return 0
    return int(Path(find_latest_checkpoint(str(work_dir))).stem.split('_')[-1])


def wait_for(condition, process=None, timeout=600):
    """Wait until a condition holds; return False if the process ends first."""
    end = time.monotonic() + timeout
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        if time.monotonic() > end:
            if process is not None:
                process.kill()
            raise TimeoutError('the condition was never met')
        time.sleep(0.001)
    return True


def kill_while_starting(process, work_dir, chance):
    """Kill it in the first seconds: imports, building, reading the checkpoint."""
    time.sleep(chance.uniform(0, 8))
    assert process.poll() is None
    kill(process)


def wait_for_steps(process, work_dir, chance):
    """Wait until one to three more steps are saved."""
    step = saved_step(work_dir) + chance.randint(1, 3)
    assert wait_for(lambda: saved_step(work_dir) >= step, process)


def kill_while_training(process, work_dir, chance):
    """Kill it at a random time after a few steps: in forward, backward, validation or a save."""
    wait_for_steps(process, work_dir, chance)
    time.sleep(chance.uniform(0, 0.15))
    assert process.poll() is None
    kill(process)


def kill_while_writing(process, work_dir, chance):
    """Kill it while a checkpoint does not have its final name yet."""
    wait_for_steps(process, work_dir, chance)

    def is_writing():
        return any(work_dir.glob('*.pth' + UNFINISHED))

    while True:
        assert wait_for(is_writing, process)
        process.send_signal(signal.SIGSTOP)  # it must not finish before we check again
        time.sleep(0.01)
        if is_writing():
            break
        process.send_signal(signal.SIGCONT)
    kill(process)
    assert is_writing()


def check_readable(work_dir):
    """Check that every checkpoint is complete, above all the one that a resumed run would use."""
    chosen = find_latest_checkpoint(str(work_dir))
    paths = {str(path) for path in work_dir.glob('*.pth')}
    assert chosen is None or chosen in paths
    for path in paths:
        content = load(path)
        assert content['state_dict'] and content['optimizer'] and content['param_schedulers']


def load(path):
    return read_checkpoint(path)


def differences(one, two, where=''):
    """Return the names of values in which two nested containers differ; tensors bit by bit."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return [] if one.dtype == two.dtype and torch.equal(one, two) else [where]
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [d for k in one for d in differences(one[k], two[k], f'{where}.{k}')]
    if isinstance(one, (list, tuple)) and isinstance(two, type(one)) and len(one) == len(two):
        return [
            d
            for i, pair in enumerate(zip(one, two, strict=True))
            for d in differences(*pair, f'{where}.{i}')
        ]
    return [] if one == two else [where]


def check_same_training(one, two):
    """Check that two checkpoints are equal in all that a resumed run continues from."""
    keys = ('state_dict', 'optimizer', 'param_schedulers')
    one, two = ({key: load(path)[key] for key in keys} for path in (one, two))
    assert not differences(one, two)
    assert one['state_dict'] and one['optimizer']['state']
