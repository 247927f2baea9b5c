"""One image over 1, 2 and 4 gloo processes: the features and gradients of a single process."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np

from xcit_mm.large.processes import split_rows

ROOT = Path(__file__).parents[2]


def test_processes_that_share_an_image_compute_what_one_does(free_port):
    command = [sys.executable, '-m', 'tests.large.spread_workers', str(free_port)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout.count('ok') == 3, run.stdout + run.stderr


def test_rows_are_split_at_windows_of_the_pyramid():
    generator = np.random.default_rng(0)
    for height in generator.integers(8, 200, 20):
        parts = split_rows(int(height), 4, 2)
        assert parts[0][0] == 0 and parts[-1][1] == height
        assert all(a[1] == b[0] and b[0] % 2 == 0 for a, b in itertools.pairwise(parts))
        assert all(stop - start >= 2 for start, stop in parts[:-1])
