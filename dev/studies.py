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
from mmengine.runner import find_latest_checkpoint

from xcit_mm.demo.curves import read_curves
from xcit_mm.errors import UserError
from xcit_mm.tables import format_metric, format_table
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.files import write_atomically

from .pages import write_between_marks, write_numbers

Record = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Models that are compared on one dataset.

    Args:
        title (str): What is trained on what.
        configs (dict[str, str]): Config by name of the model.
        metrics (dict[str, str]): Headline metrics: name in the JSON -> column of the table. The
            first is drawn over the time; without any, the task is not drawn.
        options (dict[str, tuple[str, ...]]): What changes in the config, by name of the model.
    """

    title: str
    configs: dict[str, str]
    metrics: dict[str, str]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def curve(self) -> str:
        """The metric that is drawn."""
        return next(iter(self.metrics))

    def changes(self, model: str) -> list[str]:
        """Return the arguments of a command for what changes in the config of a model."""
        return ['--cfg-options', *self.options[model]] if model in self.options else []


@dataclass(frozen=True)
class Study:
    """A set of tasks, and where its runs and results are.

    Args:
        tasks (Mapping[str, Task]): By short name.
        out (Path): Folder of the runs.
        page (Path): The page with its tables; the results of all runs and the curves go next to it.
        first_column (str): Name of the column of the models.
        by_time (bool): Whether the curves are drawn over the processor time, not the iterations.
        seeds (tuple[int, ...]): The seeds of each model, by default.
    """

    tasks: Mapping[str, Task]
    out: Path
    page: Path
    first_column: str
    by_time: bool
    seeds: tuple[int, ...]

    def main(self, prog: str, description: str, argv: Sequence[str] | None = None) -> int:
        """Train what is missing, and write the page.

        Args:
            prog (str): The command.
            description (str): What its help says.
            argv (Sequence[str], optional): Its arguments.
        """
        parser = argparse.ArgumentParser(prog=prog, description=description)
        parser.add_argument(
            '--tasks', nargs='+', choices=self.tasks, default=list(self.tasks), help='default: all'
        )
        parser.add_argument(
            '--seeds', nargs='+', type=int, default=self.seeds, help='default: %(default)s'
        )
        parser.add_argument(
            '--threads', type=int, default=os.cpu_count() or 1, help='default: one per core'
        )
        parser.add_argument(
            '--report', action='store_true', help='train nothing: write the page from earlier runs'
        )
        return explain_errors(self.work, parser.parse_args(argv))

    def work(self, args: argparse.Namespace) -> int:
        """Do what the arguments say."""
        for seed in [] if args.report else args.seeds:
            for task in args.tasks:
                for model in self.tasks[task].configs:
                    self.run(task, model, seed, args.threads)
        self.write(self.read_records())
        return 0

    def run(self, task: str, model: str, seed: int, threads: int) -> None:
        """Train and test one model, unless that is done.

        Args:
            task (str): A key of ``tasks``.
            model (str): A name in the task.
            seed (int): Seed of the training.
            threads (int): Threads of PyTorch.
        """
        this, folder = self.tasks[task], self.folder(task, model, seed)
        record = folder / 'record.json'
        if record.is_file():
            return
        print(f'{this.title}, {model}, seed {seed}: {folder}', flush=True)
        before = _processor_seconds()
        command('train', this.configs[model], '--work-dir', folder, '--seed', seed, '--resume',
                *this.changes(model), threads=threads)  # fmt: skip
        minutes = round((_processor_seconds() - before) / 60, 1)
        known = dict(task=task, model=model, seed=seed, threads=threads, processor_minutes=minutes)
        content = {**known, **self.results(task, model, folder, threads)}
        write_atomically(record, json.dumps(content, indent=1) + '\n')

    def results(self, task: str, model: str, folder: Path, threads: int) -> Record:
        """Test a model that was trained, and return what is recorded besides its training."""
        this, path = self.tasks[task], folder / 'test.json'
        checkpoint = find_latest_checkpoint(str(folder))
        command('test', this.configs[model], checkpoint, '--work-dir', folder, '--json', path,
                '--force', *this.changes(model), threads=threads)  # fmt: skip
        curve = read_curves(folder, [this.curve])[1][this.curve]
        return {'metrics': _read_json(path), 'curve': curve}

    def folder(self, task: str, model: str, seed: int) -> Path:
        """Return the work folder of a training."""
        name = re.sub(r'\W+', '_', model).lower()
        return self.out / f'{task}_{name}_seed{seed}'

    @property
    def records(self) -> Path:
        """Where the results of all runs are kept."""
        return self.page.with_suffix('.json')

    def read_records(self) -> list[Record]:
        """Return the runs of the page, and those that were made since."""
        earlier = _read_json(self.records) if self.records.is_file() else []
        new = [_read_json(path) for path in sorted(self.out.glob('*/record.json'))]
        if not earlier and not new:
            raise UserError(f'There are no finished runs in {self.out}.')
        by_run = {(r['task'], r['model'], r['seed']): r for r in [*earlier, *new]}
        return [by_run[run] for run in sorted(by_run)]

    def tables(self, records: list[Record]) -> dict[str, list[Row]]:
        """Return the rows of each table by the name in the marks of the page."""
        return {task: self.headline_rows(task, records) for task in self.tasks}

    def headline_rows(self, task: str, records: list[Record]) -> list[Row]:
        """Return a row per model: the metrics of each seed, their mean if many, and the time."""
        this, rows = self.tasks[task], []
        for model in this.configs:
            found = [r for r in records if r['task'] == task and r['model'] == model]
            if not found:
                continue
            row: Row = {self.first_column: model, 'seeds': len(found)}
            for key, column in this.metrics.items():
                numbers = [record['metrics'][key] for record in found]
                row[column] = ', '.join(format_metric(key, number) for number in numbers)
                if len(numbers) > 2:
                    row[column] = f'{format_metric(key, mean(numbers))} ({row[column]})'
            row['processor minutes'] = round(mean(r['processor_minutes'] for r in found), 1)
            rows.append(row)
        return rows

    def write(self, records: list[Record]) -> None:
        """Replace the tables of the page, keep the records, and draw the curves."""
        parts = {
            name: format_table(rows, 'markdown') if rows else 'Not measured yet.'
            for name, rows in self.tables(records).items()
        }
        write_between_marks(self.page, parts)
        write_numbers(self.records, records)
        picture = self.page.parent / 'images' / f'{self.page.stem}_curves.png'
        picture.parent.mkdir(exist_ok=True)
        self._curves(records).savefig(picture, dpi=110)
        print(f'Curves: {picture}')

    def _curves(self, records: list[Record]) -> Figure:
        """Draw the tasks side by side; one point is no curve, and one model no comparison."""
        drawn = [r for r in records if len(r['curve']) > 1]
        compared = [name for name, t in self.tasks.items() if t.metrics and len(t.configs) > 1]
        tasks = [name for name in compared if any(r['task'] == name for r in drawn)]
        rows = -(-len(tasks) // 2)
        figure = Figure(figsize=(9, 3 * max(rows, 1)), layout='constrained')
        for place, name in enumerate(tasks, start=1):
            axes = figure.add_subplot(rows, 2, place)
            self._draw_task(axes, self.tasks[name], [r for r in drawn if r['task'] == name])
        return figure

    def _draw_task(self, axes: Axes, task: Task, records: list[Record]) -> None:
        for number, model in enumerate(task.configs):
            label: str | None = model
            for record in (r for r in records if r['model'] == model):
                places = [float(step) for step in record['curve']]
                if self.by_time:
                    scale = record['processor_minutes'] / max(places)
                    places = [place * scale for place in places]
                values = list(record['curve'].values())
                axes.plot(places, values, marker='.', color=f'C{number}', label=label)
                label = None
        axes.set_title(task.title, fontsize=10)
        axes.set_xlabel('processor minutes' if self.by_time else 'iteration')
        axes.set_ylabel(f'{task.metrics[task.curve]} on the test images')
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(frameon=False, loc='lower right', fontsize=8)


def command(*arguments: Any, threads: int = 1) -> None:
    """Run one of our commands.

    Args:
        *arguments: Its name and arguments.
        threads (int): Threads of PyTorch. Defaults to 1.
    """
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    words = [sys.executable, '-m', 'xcit_mm_cli', *map(str, arguments)]
    if subprocess.run(words, env=env).returncode:
        raise UserError(f'xcit-mm {arguments[0]} {arguments[1]} failed; the reason is above.')


def _processor_seconds() -> float:
    """Return the processor time of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding='utf-8'))
