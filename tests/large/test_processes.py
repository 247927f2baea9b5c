"""One image over several gloo processes: features, gradients and training of a single process."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from xcit_mm.large.processes import split_rows

from ..engine import runs
from ..tiny import ROOT, write_recipe


def run(command, **env):
    """Run a command to its end, and return what it printed."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env={**os.environ, 'OMP_NUM_THREADS': '1', **env},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_processes_that_share_an_image_compute_what_one_does(free_port):
    printed = run([sys.executable, '-m', 'tests.large.spread_workers', free_port])
    assert printed.count('ok') == 3


def test_rows_are_split_at_windows_of_the_pyramid():
    generator = np.random.default_rng(0)
    for height in generator.integers(8, 200, 20):
        parts = split_rows(int(height), 4, 2)
        assert parts[0][0] == 0 and parts[-1][1] == height
        assert all(a[1] == b[0] and b[0] % 2 == 0 for a, b in itertools.pairwise(parts))
        assert all(stop - start >= 2 for start, stop in parts[:-1])


SETTINGS = """
custom_imports = dict(imports=['xcit_mm', 'xcit_mm.large'], allow_failed_imports=False)
model['backbone'].update(type='SpreadXCiT', drop_path_rate=0.0)
train_dataloader.update(
    sampler=dict(type={sampler}, shuffle=False), batch_sampler=dict(type='SeededBatchSampler'))
"""


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason='for machines without CUDA')
def test_two_processes_train_a_detector_on_shared_images(small_data, tmp_path, free_port):
    config = write_recipe(tmp_path, 'mask_rcnn', 16, small_data)
    plain, states = config.read_text(), []
    for sampler, command in [
        ("'SeededDefaultSampler'", [sys.executable, 'tools/train.py', config]),
        ("'SharedDefaultSampler', processes=2", ['bash', 'tools/dist_train.sh', config, 2]),
    ]:
        config.write_text(plain + SETTINGS.format(sampler=sampler))
        work = tmp_path / str(len(states))
        options = ['--work-dir', work, '--seed', '1', '--no-validate']
        run([*command, *options], PYTHON=sys.executable, PORT=str(free_port))
        (checkpoint,) = work.glob('*_1.pth')
        states.append(runs.load(checkpoint)['state_dict'])
    for name, value in states[0].items():
        if name.startswith('backbone') and 'running' in name:
            torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-5)
