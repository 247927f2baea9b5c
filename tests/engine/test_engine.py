"""Hooks and optimizer wrappers."""

import os
import pty
import subprocess
import sys

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from tests.compat.test_compat import RUNNER

WITH_BAR = RUNNER.replace(
    'runner.train()', "runner.register_hook(dict(type='ProgressBarHook'))\nrunner.train()"
)


def code(work_dir):
    return WITH_BAR.format(work_dir=str(work_dir), first='xcit_mm', epochs=2, resume=False)


def test_progress_bar_is_quiet_in_a_log(tmp_path):
    run = subprocess.run(
        [sys.executable, '-c', code(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert '━' not in run.stdout + run.stderr


def test_progress_bar_draws_on_a_terminal(tmp_path):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, '-c', code(tmp_path)],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env={**os.environ, 'COLUMNS': '120', 'TERM': 'xterm'},
    )
    os.close(follower)
    drawn = b''
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:
            break
        if not block:
            break
        drawn += block
    assert process.wait(timeout=120) == 0
    text = drawn.decode(errors='replace')
    assert 'epoch 2/2' in text and 'loss' in text and 'lr 1.0e-01' in text and '4/4' in text


def test_mixed_precision_only_with_cuda():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='CudaAmpOptimWrapper'), default_args=dict(optimizer=optimizer)
    )
    expected = AmpOptimWrapper if torch.cuda.is_available() else OptimWrapper
    assert type(wrapper) is expected
