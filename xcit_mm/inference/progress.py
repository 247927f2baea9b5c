"""Shows how far an inference is: a bar on a terminal, a line now and then in a log."""

import time
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task
from rich.text import Text

from xcit_mm_runtime.progress import progress_bar

# Seconds between two lines in a log.
INTERVAL = 30.0
# Seconds over which the speed is averaged.
SPEED_PERIOD = 300.0


class SpeedColumn(ProgressColumn):
    """Speed, failures and remaining time."""

    def render(self, task: Task) -> Text:
        return Text(describe_speed(task))


def describe_speed(task: Task) -> str:
    """Return speed, failures and remaining time.

    Args:
        task (Task): Has the field ``skipped``, if anything can be.
    """
    parts = []
    speed = task.finished_speed or task.speed
    if speed:
        parts.append(f'{speed:.3g} per second')
    if task.fields.get('skipped'):
        parts.append(f'{task.fields["skipped"]:,} skipped')
    if task.time_remaining is not None and not task.finished:
        parts.append(f'{timedelta(seconds=int(task.time_remaining))} left')
    return ', '.join(parts)


class InferenceProgress:
    """Progress over the inputs of one process.

    Args:
        name (str): What the inputs are called.
        total (int): How many there are.
        skipped (int): How many were skipped before.
        is_shown (bool): Whether to show anything: of several processes, one per machine does.
    """

    def __init__(self, name: str, total: int, skipped: int, is_shown: bool = True) -> None:
        columns = ('{task.description}', BarColumn(), MofNCompleteColumn(), SpeedColumn())
        self.bar = progress_bar(*columns, transient=False)
        self.bar.speed_estimate_period = SPEED_PERIOD
        self.has_lines = is_shown and self.bar.disable
        self.bar.disable |= not is_shown
        self.bar.add_task(name, total=total, skipped=skipped)
        (self.inputs,) = self.bar.tasks
        self.next_line = time.monotonic() + INTERVAL

    def __enter__(self) -> 'InferenceProgress':
        self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.stop()

    def advance(self, skipped: int) -> None:
        """Count one more input.

        Args:
            skipped (int): How many were skipped so far.
        """
        self.bar.update(self.inputs.id, advance=1, skipped=skipped)
        if self.has_lines and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + INTERVAL
            done = f'{self.inputs.completed:,.0f} of {self.inputs.total:,.0f}'
            print(f'{self.inputs.description}: {done}, {describe_speed(self.inputs)}', flush=True)
