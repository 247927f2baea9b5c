"""The progress bar of training draws on a terminal, and nowhere else."""

import contextlib
import os
import pty
import sys
import threading

from tests.engine.small_runs import batches, run
from xcit_mm.engine import ProgressBarHook


def test_progress_bar_is_quiet_in_a_log(tmp_path, capfd):
    run(tmp_path, batches('good'), ProgressBarHook())
    assert '━' not in ''.join(capfd.readouterr())


def test_progress_bar_draws_on_a_terminal(tmp_path, monkeypatch):
    leader, follower = pty.openpty()
    monkeypatch.setenv('COLUMNS', '120')
    monkeypatch.setenv('TERM', 'xterm')
    drawn = []
    reader = threading.Thread(target=read_all, args=(leader, drawn))
    reader.start()
    with os.fdopen(follower, 'w') as terminal:
        monkeypatch.setattr(sys, 'stderr', terminal)
        run(tmp_path, batches('good', 'good'), ProgressBarHook(), epochs=2)
    monkeypatch.undo()
    reader.join(timeout=60)
    text = b''.join(drawn).decode(errors='replace')
    assert 'epoch 2/2' in text and 'loss' in text and 'lr 1.0e-02' in text and '4/4' in text


def read_all(descriptor, blocks):
    """Read from a terminal until its other end is closed, which is an error on Linux."""
    with contextlib.suppress(OSError):
        while block := os.read(descriptor, 4096):
            blocks.append(block)
    os.close(descriptor)
