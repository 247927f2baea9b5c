"""A detector trains with its images spread over two processes, and learns what one process does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine import runs
from tests.tiny import write_recipe

ROOT = Path(__file__).parents[2]
SHARED = """
custom_imports = dict(imports=['xcit_mm', 'xcit_mm.large'], allow_failed_imports=False)
model['backbone'].update(type='SpreadXCiT', drop_path_rate=0.0)
train_dataloader.update(
    sampler=dict(type='SharedDefaultSampler', processes=2, shuffle=False),
    batch_sampler=dict(type='SeededBatchSampler'))
"""


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_two_processes_train_a_detector_on_shared_images(small_data, tmp_path, free_port):
    config = write_recipe(tmp_path, 'mask_rcnn', 16, small_data)
    plain = config.read_text()
    alone = SHARED.replace(
        "type='SharedDefaultSampler', processes=2", "type='SeededDefaultSampler'"
    )
    states = []
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': sys.executable, 'PORT': str(free_port)}
    for name, more, command in [
        ('alone', alone, [sys.executable, 'tools/train.py', config]),
        ('shared', SHARED, ['bash', 'tools/dist_train.sh', config, '2']),
    ]:
        config.write_text(plain + more)
        work = tmp_path / name
        command += ['--work-dir', work, '--seed', '1', '--no-validate']
        run = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=env, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
        (checkpoint,) = work.glob('*_1.pth')
        states.append(runs.load(checkpoint)['state_dict'])
    for name, value in states[0].items():
        if name.startswith('backbone') and 'running' in name:
            torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-5)
