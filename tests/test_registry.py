"""Configs that inherit ours by the prefix ``xcit_mm::`` are built without a warning."""

import subprocess
import sys

import pytest

from .tiny import BACKBONE, CONFIGS, LOADERS, ROOT

WARNINGS = ('is not installed', 'Failed to search registry', 'Failed to import')


@pytest.mark.parametrize('task', ['seg', 'det'])
def test_training_from_the_prefix_gives_no_warning(task, small_data, tmp_path):
    text = (CONFIGS[task] + LOADERS).replace('{root}/configs/', 'xcit_mm::')
    config = tmp_path / 'user.py'
    config.write_text(text.format(data=small_data, backbone=BACKBONE, filter_cfg=None))
    command = [sys.executable, 'tools/train.py', config, '--work-dir', tmp_path / 'work']
    short = ['--cfg-options', 'train_dataloader.dataset.indices=2']
    run = subprocess.run(
        [*map(str, command + short)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    printed = run.stdout + run.stderr
    assert run.returncode == 0, printed[-3000:]
    assert [line for line in printed.splitlines() if any(w in line for w in WARNINGS)] == []
