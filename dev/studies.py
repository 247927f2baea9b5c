"""Trainings that are compared: each runs once, can be interrupted, and is recorded."""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xcit_mm.demo.curves import read_curves
from xcit_mm.errors import UserError
from xcit_mm.tables import format_metric, format_table
from xcit_mm_cli.arguments import positive
from xcit_mm_runtime.files import write_atomically

from .pages import write_between_marks

Record = dict[str, Any]
# Curves side by side in a picture.
MAX_COLUMNS = 2


@dataclass(frozen=True)
class Task:
    """Models that are compared on one dataset.

    Args:
        title (str): What is trained on what.
        configs (dict[str, str]): Config by name of the model.
        metrics (dict[str, str]): Headline metrics: name in the JSON -> column of the table.
        curve (str): The metric that is drawn over the time.
        options (dict[str, tuple[str, ...]]): What changes in the config, by name of the model.
    """

    title: str
    configs: dict[str, str]
    metrics: dict[str, str]
    curve: str
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A set of tasks, and where its runs and results are.

    Args:
        tasks (Mapping[str, Task]): By short name.
        out (Path): Folder of the runs.
        page (Path): The page with its tables.
        records (Path): Where the results of all runs are kept, in JSON.
        picture (Path): Where the curves are drawn.
        first_column (str): Name of the column of the models.
        by_time (bool): Whether the curves are drawn over the processor time, not the iterations.
    """

    tasks: Mapping[str, Task]
    out: Path
    page: Path
    records: Path
    picture: Path
    first_column: str
    by_time: bool

    def run(self, task: str, model: str, seed: int, threads: int) -> None:
        """Train and test one model, unless that is done.

        Args:
            task (str): A key of ``tasks``.
            model (str): A name in the task.
            seed (int): Seed of the training.
            threads (int): Threads of PyTorch.
        """
        this = self.tasks[task]
        name = re.sub(r'\W+', '_', model).lower()
        folder = self.out / f'{task}_{name}_seed{seed}'
        record = folder / 'record.json'
        if record.is_file():
            return
        print(f'{this.title}, {model}, seed {seed}: {folder}', flush=True)
        config, options = this.configs[model], this.options.get(model, ())
        minutes = train(config, folder, seed, threads, options)
        content = {
            'task': task,
            'model': model,
            'seed': seed,
            'threads': threads,
            'processor_minutes': minutes,
            'metrics': test(config, folder, threads, options),
            'curve': read_curves(folder, [this.curve])[1][this.curve],
        }
        write_atomically(record, json.dumps(content, indent=1) + '\n')

    def read_records(self) -> list[Record]:
        """The runs of the page, and those that were made since."""
        is_there = self.records.is_file()
        earlier = json.loads(self.records.read_text(encoding='utf-8')) if is_there else []
        paths = sorted(self.out.glob('*/record.json'))
        new = [json.loads(path.read_text(encoding='utf-8')) for path in paths]
        if not earlier and not new:
            raise UserError(f'There are no finished runs in {self.out}.')
        by_run = {(r['task'], r['model'], r['seed']): r for r in [*earlier, *new]}
        return [by_run[run] for run in sorted(by_run)]

    def headline_rows(self, task: str, records: list[Record]) -> list[dict[str, Any]]:
        """A row per model: the metrics of each seed, their mean if there are many, and the time."""
        this, rows = self.tasks[task], []
        for model in this.configs:
            found = [r for r in records if r['task'] == task and r['model'] == model]
            if not found:
                continue
            values: dict[str, str] = {}
            for key, column in this.metrics.items():
                numbers = [record['metrics'][key] for record in found]
                values[column] = ', '.join(format_metric(key, number) for number in numbers)
                if len(numbers) > 2:
                    values[column] = f'{format_metric(key, mean(numbers))} ({values[column]})'
            minutes = round(mean(r['processor_minutes'] for r in found), 1)
            first = {self.first_column: model, 'seeds': len(found)}
            rows.append({**first, **values, 'processor minutes': minutes})
        return rows

    def write(self, records: list[Record], tables: Mapping[str, list[dict[str, Any]]]) -> None:
        """Replace the tables of the page, keep the records, and draw the curves.

        Args:
            records (list[dict]): All runs.
            tables (Mapping[str, list[dict]]): Rows by the name in the marks of the page.
        """
        parts = {
            name: format_table(rows, 'markdown') if rows else 'Not measured yet.'
            for name, rows in tables.items()
        }
        write_between_marks(self.page, parts)
        write_atomically(self.records, json.dumps(records, indent=1) + '\n')
        self._draw_curves(records)
        print(f'{len(records)} runs: {self.page}, {self.records} and {self.picture}')

    def _draw_curves(self, records: list[Record]) -> None:
        # One point is no curve, and one model no comparison.
        compared = [name for name, task in self.tasks.items() if len(task.configs) > 1]
        drawn = [r for r in records if len(r['curve']) > 1 and r['task'] in compared]
        tasks = [name for name in compared if any(r['task'] == name for r in drawn)]
        columns = max(min(MAX_COLUMNS, len(tasks)), 1)
        rows = max(-(-len(tasks) // columns), 1)
        figure = Figure(figsize=(4.5 * columns, 3 * rows), layout='constrained')
        for place, task in enumerate(tasks, start=1):
            axes = figure.add_subplot(rows, columns, place)
            self._draw_task(axes, task, [r for r in drawn if r['task'] == task])
        self.picture.parent.mkdir(exist_ok=True)
        figure.savefig(self.picture, dpi=110)

    def _draw_task(self, axes: Axes, task: str, records: list[Record]) -> None:
        this = self.tasks[task]
        for number, model in enumerate(this.configs):
            label: str | None = model
            for record in (r for r in records if r['model'] == model):
                places = [float(step) for step in record['curve']]
                if self.by_time:
                    scale = record['processor_minutes'] / max(places)
                    places = [place * scale for place in places]
                values = list(record['curve'].values())
                axes.plot(places, values, marker='.', color=f'C{number}', label=label)
                label = None
        axes.set_title(this.title, fontsize=10)
        axes.set_xlabel('processor minutes' if self.by_time else 'iteration')
        axes.set_ylabel(f'{this.metrics[this.curve]} on the test images')
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(frameon=False, loc='lower right', fontsize=8)


def add_run_arguments(parser: argparse.ArgumentParser, seeds: list[int]) -> None:
    """Add what the commands of all studies have.

    Args:
        parser (argparse.ArgumentParser): Of the command.
        seeds (list[int]): Seeds by default.
    """
    shown = ' '.join(map(str, seeds))
    parser.add_argument('--seeds', nargs='+', type=int, default=seeds, help=f'default: {shown}')
    parser.add_argument(
        '--threads', type=positive, default=os.cpu_count() or 1, help='default: one per core'
    )
    parser.add_argument(
        '--report', action='store_true', help='train nothing: write the page from earlier runs'
    )


def train(config: str, folder: Path, seed: int, threads: int, options: Sequence[str] = ()) -> float:
    """Train, or resume training; returns the minutes of processor time that it took.

    Args:
        config (str): The config.
        folder (Path): Work folder.
        seed (int): Seed of the training.
        threads (int): Threads of PyTorch.
        options (Sequence[str]): What changes in the config.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command('train', config, '--work-dir', folder, '--seed', seed, '--resume', *_changes(options),
             threads=threads)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sum(getattr(after, key) - getattr(before, key) for key in ('ru_utime', 'ru_stime'))
    return round(seconds / 60, 1)


def test(config: str, folder: Path, threads: int, options: Sequence[str] = ()) -> dict[str, float]:
    """The metrics of the last checkpoint in a work folder.

    Args:
        config (str): The config.
        folder (Path): Work folder.
        threads (int): Threads of PyTorch.
        options (Sequence[str]): What changes in the config.
    """
    path = folder / 'test.json'
    command('test', config, last_checkpoint(folder), '--work-dir', folder, '--json', path,
             '--force', *_changes(options), threads=threads)  # fmt: skip
    return json.loads(path.read_text(encoding='utf-8'))


def last_checkpoint(folder: Path) -> str:
    """The last checkpoint in a work folder."""
    return (folder / 'last_checkpoint').read_text(encoding='utf-8').strip()


def _changes(options: Sequence[str]) -> list[str]:
    return ['--cfg-options', *options] if options else []


def command(*arguments: Any, threads: int = 1) -> None:
    """Run one of our commands.

    Args:
        *arguments: Its name and arguments.
        threads (int): Threads of PyTorch. Defaults to 1.
    """
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    command = [sys.executable, '-m', 'xcit_mm_cli', *map(str, arguments)]
    if subprocess.run(command, check=False, env=env).returncode:
        raise UserError(f'xcit-mm {arguments[0]} {arguments[1]} failed; the reason is above.')
