"""Measurements of candidates, each in a fresh process, and what their times say."""

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dev.measure import run_worker

# Where everything is measured: cpu or cuda. The command line sets it.
DEVICE = 'cpu'
THREADS = 2


def run_job(
    measure: str,
    candidates: Sequence[dict[str, Any]],
    size: tuple[int, int],
    mode: str = 'infer',
    repetitions: int = 3,
    batch: int = 1,
    memory_limit: float | None = None,
) -> dict[str, Any]:
    """Measure in a separate process; see :mod:`.worker`.

    Args:
        measure (str): ``several``, ``agreement``, ``one`` or ``rate``.
        candidates (Sequence[dict]): Arguments of :func:`.candidates.build`.
        size (tuple[int, int]): Height and width of the image.
        mode (str): A mode of :func:`.candidates.build_step`.
        repetitions (int): How many times each is timed.
        batch (int): Number of images.
        memory_limit (float, optional): Gigabytes that the process may use on a CPU; then running
            out of memory is a result, ``out_of_memory``. Defaults to None.
    """
    job = {
        'measure': measure,
        'candidates': list(candidates),
        'size': list(size),
        'mode': mode,
        'repetitions': repetitions,
        'batch': batch,
        'device': DEVICE,
        'memory_limit': memory_limit,
    }
    return run_worker('dev.benchmark.worker', job)


def timm_and_ours(arch: str, patch_size: int, **options: Any) -> list[dict[str, Any]]:
    """Return timm's XCiT and ours as candidates."""
    size = {'arch': arch, 'patch_size': patch_size, **options}
    return [{'name': name, **size} for name in ('timm', 'ours')]


@functools.cache
def against_timm(
    arch: str,
    patch_size: int,
    size: tuple[int, int],
    mode: str = 'infer',
    repetitions: int = 3,
    batch: int = 1,
    drop_path_rate: float = 0.0,
    compiled: bool = False,
) -> tuple[list[float], list[float]]:
    """Return times of timm's XCiT and of ours, alternating in one process; measured once per run.

    All tables of the page get their numbers here, so they cannot disagree.

    Args:
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        size (tuple[int, int]): Height and width of the image.
        mode (str): ``infer``, ``train`` or ``amp train``.
        repetitions (int): How many times each is timed.
        batch (int): Number of images.
        drop_path_rate (float): Stochastic depth of both.
        compiled (bool): Whether our layers are compiled.
    """
    pair = timm_and_ours(arch, patch_size, drop_path_rate=drop_path_rate)
    if compiled:
        pair[1]['compile'] = True
    timm, ours = run_job('several', pair, size, mode, repetitions, batch)['times']
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
    """Return how much faster the second candidate of a pair is than the first."""
    ratios = [a / b for a, b in zip(*times, strict=True)]
    value = statistics.median(times[0]) / statistics.median(times[1])
    return Ratio(value, min(ratios), max(ratios))


def exponent(pixels: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a line fitted to the points on a log-log scale."""
    return float(np.polyfit(np.log(pixels), np.log(values), 1)[0])
