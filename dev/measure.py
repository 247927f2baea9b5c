"""Measures in processes of their own: jobs, times, and memory as Linux counts it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xcit_mm_runtime.errors import UserError

Job = dict[str, Any]
RESULT = 'RESULT '


def run_worker(module: str, job: Job) -> dict[str, Any]:
    """Run a measurement in a process of its own and return its result.

    Args:
        module (str): A module that calls :func:`answer`.
        job (dict): The job, in plain values; ``measure`` names the measurement.
    """
    command = [sys.executable, '-m', module, json.dumps(job)]
    run = subprocess.run(command, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT))
    tail = '\n'.join(run.stderr.splitlines()[-5:])
    raise UserError(f'{json.dumps(job)} ended with status {run.returncode}:\n{tail}')


def answer(measures: Mapping[str, Callable[[Job], dict[str, Any]]]) -> None:
    """Do the job that :func:`run_worker` gave to this process.

    Args:
        measures (Mapping[str, callable]): The measurements by name.
    """
    job = json.loads(sys.argv[1])
    print(RESULT + json.dumps(measures[job['measure']](job)))


def seconds(step: Callable[[], Any]) -> float:
    """Return how long a step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def alternate(
    steps: Sequence[Callable[[], Any]], repetitions: int, pause: float = 0.0
) -> list[list[float]]:
    """Time steps in alternating order, after a warm-up; return the seconds of each.

    Args:
        steps (Sequence[callable]): The steps.
        repetitions (int): How many times each is timed.
        pause (float): Seconds to wait before each. Defaults to 0.
    """
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    for repetition in range(repetitions):
        order = range(len(steps))
        for i in order if repetition % 2 else reversed(order):
            time.sleep(pause)
            times[i].append(seconds(steps[i]))
    return times


def memory_status(field: str, pid: int | str = 'self') -> float:
    """Return a line of a process's status in MB: ``VmRSS`` is its memory, ``VmHWM`` its peak.

    Args:
        field (str): Name of the line.
        pid (int or str): The process. Defaults to this one.
    """
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith(f'{field}:'):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def reset_peak(pid: int | str = 'self') -> None:
    """Let ``VmHWM`` count from now on."""
    Path(f'/proc/{pid}/clear_refs').write_text('5')
