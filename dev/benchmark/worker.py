"""Runs one measurement in a separate process, so that measurements cannot disturb each other.

``python -m dev.benchmark.worker JOB`` with a job in JSON prints its result as one line of JSON.
"""

import contextlib
import json
import sys
import time
from typing import Any

import torch

from dev.memory import reset_peak, status
from xcit_mm.models import XCiT

from .candidates import TimmBackbone, build_backbone, build_detector, build_step


def _build(candidate: dict[str, Any], mode: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if mode == 'detect':
        return build_detector(**candidate)
    return build_backbone(**candidate)


def _seconds(step: Any) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure_pair(job: dict[str, Any]) -> dict[str, Any]:
    """Times of two candidates in alternating order, on the same weights if both are XCiT."""
    first, second = (_build(candidate, job['mode']) for candidate in job['candidates'])
    if isinstance(first, TimmBackbone) and isinstance(second, XCiT):
        second.load_state_dict(first.model.state_dict())
    steps = [build_step(job['mode'], model, *job['size']) for model in (first, second)]
    for step in steps:
        step()  # warm-up
    times: list[list[float]] = [[], []]
    for repetition in range(job['repetitions']):
        for index in (0, 1) if repetition % 2 else (1, 0):
            times[index].append(_seconds(steps[index]))
    return {'times': times}


def measure_one(job: dict[str, Any]) -> dict[str, Any]:
    """Times and peak memory of one candidate."""
    model = _build(job['candidates'][0], job['mode'])
    # Load the kernels first, so that their memory is not counted.
    build_step(job['mode'], model, 64, 64)()
    model.zero_grad(set_to_none=True)
    step = build_step(job['mode'], model, *job['size'])
    before = status('VmRSS')
    reset_peak()
    times = [_seconds(step)]
    peak = status('VmHWM')
    times += [_seconds(step) for _ in range(job['repetitions'] - 1)]
    return {'times': times, 'peak_MB': peak - before, 'process_MB': peak}


def measure_rate(job: dict[str, Any]) -> dict[str, Any]:
    """The machine's float32 matrix-multiply rate and, in the same run, a candidate's time."""
    model = _build(job['candidates'][0], job['mode'])
    step = build_step(job['mode'], model, *job['size'])
    size = 2048
    left, right = torch.randn(size, size), torch.randn(size, size)
    rates, times = [], []
    step()
    for _ in range(job['repetitions']):
        for _ in range(5):
            rates.append(2 * size**3 / _seconds(lambda: left @ right))
        times.append(_seconds(step))
    return {'rates': rates, 'times': times, 'flops': _flops(job)}


class _NoModules(contextlib.nullcontext):
    """Stands in for torch's tracker of modules, whose hooks would make the plain modules run."""

    parents = ('Global',)


def _flops(job: dict[str, Any]) -> int:
    """Floating-point operations of the products that our backbone really computes."""
    from torch.utils.flop_counter import FlopCounterMode, addmm_flop

    def in_place(*shapes: Any, out_shape: Any = None) -> int:
        return addmm_flop(*shapes)

    with torch.device('meta'):
        model = build_backbone(**job['candidates'][0]).eval()
        images = torch.empty(1, 3, *job['size'])
    # torch does not count products that are added in place.
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with torch.no_grad(), counter:
        model(images)
    return counter.get_total_flops()


MEASURES = {'pair': measure_pair, 'one': measure_one, 'rate': measure_rate}


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job['threads'])
    print('RESULT ' + json.dumps(MEASURES[job['measure']](job)))


if __name__ == '__main__':
    main()
