"""Hooks and optimizer wrappers."""

import contextlib
import os
import pty
import sys
import threading

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from tests.compat.test_compat import RUNNER

WITH_BAR = RUNNER.replace(
    'runner.train()', "runner.register_hook(dict(type='ProgressBarHook'))\nrunner.train()"
)


def code(work_dir):
    return WITH_BAR.format(work_dir=str(work_dir), first='xcit_mm', epochs=2, resume=False)


def test_progress_bar_is_quiet_in_a_log(tmp_path, capfd):
    exec(code(tmp_path), {})
    assert '━' not in ''.join(capfd.readouterr())
    assert (tmp_path / 'epoch_2.pth').is_file()


def test_progress_bar_draws_on_a_terminal(tmp_path, monkeypatch):
    leader, follower = pty.openpty()
    monkeypatch.setenv('COLUMNS', '120')
    monkeypatch.setenv('TERM', 'xterm')
    drawn = []
    reader = threading.Thread(target=read_all, args=(leader, drawn))
    reader.start()
    with os.fdopen(follower, 'w') as terminal:
        monkeypatch.setattr(sys, 'stderr', terminal)
        exec(code(tmp_path), {})
    monkeypatch.undo()
    reader.join(timeout=60)
    text = b''.join(drawn).decode(errors='replace')
    assert 'epoch 2/2' in text and 'loss' in text and 'lr 1.0e-01' in text and '4/4' in text


def read_all(descriptor, blocks):
    """Read from a terminal until its other end is closed, which is an error on Linux."""
    with contextlib.suppress(OSError):
        while block := os.read(descriptor, 4096):
            blocks.append(block)
    os.close(descriptor)


def test_mixed_precision_only_with_cuda():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='CudaAmpOptimWrapper'), default_args=dict(optimizer=optimizer)
    )
    expected = AmpOptimWrapper if torch.cuda.is_available() else OptimWrapper
    assert type(wrapper) is expected
