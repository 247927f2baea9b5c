"""Hooks and optimizer wrappers."""

import contextlib
import os
import pty
import sys
import threading

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from tests.compat.test_compat import RUNNER
from xcit_mm.engine.runner import check_moments

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


def test_the_state_of_an_optimizer_with_another_order_of_parameters_is_refused():
    """torch loads it by number, without a look at shapes."""
    weight, bias = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))
    wrappers = [
        OptimWrapper(torch.optim.AdamW([{'params': [p]} for p in order]))
        for order in ((weight, bias), (bias, weight))
    ]
    (weight.sum() + bias.sum()).backward()
    wrappers[0].step()
    check_moments(wrappers[0])
    wrappers[1].load_state_dict(wrappers[0].state_dict())
    for wrapper in (wrappers[1], OptimWrapperDict(one=wrappers[1])):
        with pytest.raises(ValueError, match='another order of parameters'):
            check_moments(wrapper)
