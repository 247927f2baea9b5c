"""Starts measurements in fresh processes and reads their results."""

import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Where everything is measured: cpu or cuda. The command line sets it.
DEVICE = 'cpu'


class BenchmarkError(RuntimeError):
    """A measurement failed."""


def run_job(
    measure: str,
    candidates: Sequence[dict[str, Any]],
    size: tuple[int, int],
    mode: str = 'infer',
    repetitions: int = 3,
    threads: int = 2,
    batch: int = 1,
) -> dict[str, Any]:
    """Measure in a separate process; see :mod:`.worker`.

    Args:
        measure (str): ``pair``, ``agreement``, ``one`` or ``rate``.
        candidates (Sequence[dict]): Arguments of :func:`.candidates.build_backbone`, or of
            :func:`.candidates.build_detector`.
        size (tuple[int, int]): Height and width of the image.
        mode (str): ``infer``, ``train``, ``amp`` (training under autocast), ``detect`` or ``dino``.
        repetitions (int): How many times each is timed.
        threads (int): Threads of torch.
        batch (int): Number of images.
    """
    job = {
        'measure': measure,
        'candidates': list(candidates),
        'size': list(size),
        'mode': mode,
        'repetitions': repetitions,
        'threads': threads,
        'batch': batch,
        'device': DEVICE,
    }
    command = [sys.executable, '-m', 'dev.benchmark.worker', json.dumps(job)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    for line in run.stdout.splitlines():
        if line.startswith('RESULT '):
            return json.loads(line.removeprefix('RESULT '))
    tail = '\n'.join(run.stderr.splitlines()[-5:])
    raise BenchmarkError(f'{json.dumps(job)} ended with status {run.returncode}:\n{tail}')


@functools.cache
def against_timm(
    arch: str,
    patch_size: int,
    size: tuple[int, int],
    mode: str = 'infer',
    repetitions: int = 3,
    batch: int = 1,
) -> tuple[list[float], list[float]]:
    """Times of timm's XCiT and of ours, alternating in one process; measured once per run.

    All tables of the page get their numbers here, so they cannot disagree.

    Args:
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        size (tuple[int, int]): Height and width of the image.
        mode (str): ``infer``, ``train`` or ``amp``.
        repetitions (int): How many times each is timed.
        batch (int): Number of images.
    """
    pair = [{'name': name, 'arch': arch, 'patch_size': patch_size} for name in ('timm', 'ours')]
    timm, ours = run_job('pair', pair, size, mode, repetitions, batch=batch)['times']
    return timm, ours


@dataclass
class Ratio:
    """A ratio of medians, and its range over the repetitions."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f'{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})'


def speedup(times: Sequence[Sequence[float]]) -> Ratio:
    """How much faster the second candidate of a pair is than the first."""
    ratios = [a / b for a, b in zip(*times, strict=True)]
    value = statistics.median(times[0]) / statistics.median(times[1])
    return Ratio(value, min(ratios), max(ratios))


def exponent(pixels: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a line fitted to the points on a log-log scale."""
    import numpy as np

    return float(np.polyfit(np.log(pixels), np.log(values), 1)[0])
