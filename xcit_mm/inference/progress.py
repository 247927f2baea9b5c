"""Shows how far an inference is: a bar on a terminal, a line now and then in a log."""

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

# Seconds between two lines in a log.
INTERVAL = 30.0
# Seconds over which the speed is averaged.
SPEED_PERIOD = 300.0


def describe(task: Task) -> str:
    """Speed, failures and remaining time.

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


class DescriptionColumn(ProgressColumn):
    """What :func:`describe` says."""

    def render(self, task: Task) -> Text:
        return Text(describe(task))


class Display(Progress):
    """Progress over the inputs of one process.

    Args:
        name (str): What the inputs are called.
        total (int): How many there are.
        skipped (int): How many were skipped before.
        is_shown (bool): Whether to show anything: of several processes, one per machine does.
    """

    def __init__(self, name: str, total: int, skipped: int, is_shown: bool = True) -> None:
        console = Console()
        columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
        has_bar = is_shown and console.is_terminal
        super().__init__(
            *columns,
            DescriptionColumn(),
            console=console,
            speed_estimate_period=SPEED_PERIOD,
            disable=not has_bar,
        )
        self.has_lines = is_shown and not has_bar
        self.next_line = time.monotonic() + INTERVAL
        self.inputs = self.add_task(name, total=total, skipped=skipped)

    def advance_inputs(self, skipped: int) -> None:
        """Count one more input.

        Args:
            skipped (int): How many were skipped so far.
        """
        self.update(self.inputs, advance=1, skipped=skipped)
        if self.has_lines and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + INTERVAL
            (task,) = (task for task in self.tasks if task.id == self.inputs)
            done = f'{task.completed:,.0f} of {task.total:,.0f}'
            print(f'{task.description}: {done}, {describe(task)}', flush=True)
