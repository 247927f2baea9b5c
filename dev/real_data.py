"""``python -m dev.real_data``: trains on real photographs; makes the tables of docs/real_data.md.

Needs data/bccd and data/camvid; the page says where they come from and how to lay them out.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from xcit_mm.cli.common import explain_errors
from xcit_mm.demo.curves import read_curves
from xcit_mm.errors import UserError
from xcit_mm.files import write_atomically
from xcit_mm.tables import format_table

OUT = Path('work_dirs/real_data')
PAGE = Path('docs/real_data.md')
RECORDS = Path('docs/real_data.json')


@dataclass(frozen=True)
class Task:
    """A data set with the models that are compared on it.

    Args:
        title (str): Its name.
        configs (dict[str, str]): Config by name of the backbone.
        metrics (dict[str, str]): Headline metrics: name in the JSON -> column of the table.
        curve (str): The metric that is drawn over the time.
        scale (float): Divisor that makes the metrics fractions.
    """

    title: str
    configs: dict[str, str]
    metrics: dict[str, str]
    curve: str
    scale: float = 1.0


TASKS = {
    'bccd': Task(
        'BCCD: Faster R-CNN',
        {
            'XCiT-N12/16': 'configs/detection/faster_rcnn_xcit_n12_16_bccd.py',
            'XCiT-T12/16': 'configs/detection/faster_rcnn_xcit_t12_16_bccd.py',
            'ResNet-50': 'dev/peers/faster_rcnn_r50_bccd.py',
        },
        {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'},
        'coco/bbox_mAP',
    ),
    'camvid': Task(
        'CamVid: Semantic FPN',
        {
            'XCiT-N12/16': 'configs/segmentation/sem_fpn_xcit_n12_16_camvid.py',
            'XCiT-T12/16': 'configs/segmentation/sem_fpn_xcit_t12_16_camvid.py',
            'ResNet-50': 'dev/peers/sem_fpn_r50_camvid.py',
        },
        {'mIoU': 'mIoU', 'mAcc': 'mAcc', 'aAcc': 'aAcc'},
        'mIoU',
        scale=100.0,
    ),
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.real_data',
        description='Train Faster R-CNN on BCCD and Semantic FPN on CamVid from scratch, with XCiT '
        'and with ResNet-50, test them, and write the tables and curves of docs/real_data.md. Runs '
        'that are done are left out, interrupted ones are resumed.',
    )
    parser.add_argument(
        '--data', nargs='+', choices=TASKS, default=list(TASKS), help='default: both'
    )
    parser.add_argument('--models', nargs='+', metavar='NAME', help='default: all of the table')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1], help='default: 0 1')
    parser.add_argument(
        '--threads', type=int, default=os.cpu_count() or 1, help='default: one per core'
    )
    parser.add_argument(
        '--report', action='store_true', help='train nothing: write the page from earlier runs'
    )
    return parser.parse_args(argv)


def run(task: str, model: str, seed: int, threads: int) -> None:
    """Train and test one model; measures the processor time of the training.

    Args:
        task (str): A key of :data:`TASKS`.
        model (str): Name of the backbone.
        seed (int): Seed of the training.
        threads (int): Threads of PyTorch.
    """
    config, folder = TASKS[task].configs[model], folder_of(task, model, seed)
    record = folder / 'record.json'
    if record.is_file():
        return
    print(f'{TASKS[task].title}, {model}, seed {seed}: {folder}')
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    python = [sys.executable, '-m', 'xcit_mm_cli']
    options = ['--work-dir', str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    train = [*python, 'train', config, *options, '--seed', str(seed), '--resume']
    subprocess.run(train, check=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sum(getattr(after, key) - getattr(before, key) for key in ('ru_utime', 'ru_stime'))
    checkpoint = (folder / 'last_checkpoint').read_text(encoding='utf-8').strip()
    metrics = folder / 'test.json'
    test = [*python, 'test', config, checkpoint, *options, '--json', str(metrics), '--force']
    subprocess.run(test, check=True, env=env)
    content = {
        'task': task,
        'model': model,
        'seed': seed,
        'threads': threads,
        'processor_minutes': round(seconds / 60, 1),
        'metrics': json.loads(metrics.read_text(encoding='utf-8')),
        'curve': read_curves(folder, [TASKS[task].curve])[1][TASKS[task].curve],
    }
    write_atomically(record, json.dumps(content, indent=1) + '\n')


def folder_of(task: str, model: str, seed: int) -> Path:
    name = re.sub(r'\W+', '_', model).lower()
    return OUT / f'{task}_{name}_seed{seed}'


def headline_rows(task: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model: the metrics of each seed, and the time."""
    rows = []
    for model in TASKS[task].configs:
        found = [r for r in records if r['task'] == task and r['model'] == model]
        if not found:
            continue
        values = {
            column: ', '.join(
                f'{record["metrics"][key] / TASKS[task].scale:.3f}' for record in found
            )
            for key, column in TASKS[task].metrics.items()
        }
        rows.append(
            {
                'backbone': model,
                'seeds': len(found),
                **values,
                'processor minutes': round(mean(r['processor_minutes'] for r in found), 1),
            }
        )
    return rows


def class_rows(task: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per class: the mean over the seeds of each model."""
    rows: dict[str, dict[str, Any]] = {}
    for model in TASKS[task].configs:
        found = [r for r in records if r['task'] == task and r['model'] == model]
        for name in dict.fromkeys(name for r in found for name in per_class(r['metrics'])):
            values = [per_class(r['metrics'])[name] / TASKS[task].scale for r in found]
            rows.setdefault(name, {'class': name})[model] = round(mean(values), 3)
    return list(rows.values())


def per_class(metrics: dict[str, float]) -> dict[str, float]:
    """The AP or IoU of each class in what ``xcit-mm test --json`` wrote."""
    names = {key: re.fullmatch(r'(?:coco/bbox_mAP|IoU)/(.+)', key) for key in metrics}
    return {match[1]: metrics[key] for key, match in names.items() if match}


def draw_curves(records: list[dict[str, Any]], path: Path) -> None:
    """The metric of each run over the share of the processor time."""
    tasks = {name: task for name, task in TASKS.items() if any(r['task'] == name for r in records)}
    figure = Figure(figsize=(4.5 * len(tasks), 3), layout='constrained')
    all_axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, (name, task) in zip(all_axes, tasks.items(), strict=True):
        for number, model in enumerate(task.configs):
            label: str | None = model
            for record in (r for r in records if r['task'] == name and r['model'] == model):
                steps = [int(step) for step in record['curve']]
                minutes = [record['processor_minutes'] * step / max(steps) for step in steps]
                values = [value / task.scale for value in record['curve'].values()]
                axes.plot(minutes, values, marker='.', color=f'C{number}', label=label)
                label = None
        axes.set_title(task.title, fontsize=10)
        axes.set_xlabel('processor minutes')
        axes.set_ylabel(f'{task.metrics[task.curve]} on the test images')
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(frameon=False, loc='lower right')
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def write_report(records: list[dict[str, Any]]) -> None:
    """Replace the tables between the marks of the page, and draw the curves."""
    page = PAGE.read_text(encoding='utf-8')
    for task in TASKS:
        for kind, rows in (('headline', headline_rows), ('classes', class_rows)):
            start, end = f'<!-- {task} {kind} -->', f'<!-- end of {task} {kind} -->'
            if start not in page or end not in page:
                raise UserError(f'{PAGE} has no marks {start} and {end}.')
            found = rows(task, records)
            table = format_table(found, 'markdown') if found else 'Not measured yet.'
            head, rest = page.split(start)
            page = f'{head}{start}\n{table}\n{end}{rest.split(end)[1]}'
    write_atomically(PAGE, page)
    write_atomically(RECORDS, json.dumps(records, indent=1) + '\n')
    picture = PAGE.parent / 'images' / 'real_data_curves.png'
    draw_curves(records, picture)
    print(f'{len(records)} runs: {PAGE}, {RECORDS} and {picture}')


def work(args: argparse.Namespace) -> int:
    for seed in [] if args.report else args.seeds:
        for task in args.data:
            for model in args.models or TASKS[task].configs:
                if model not in TASKS[task].configs:
                    known = ', '.join(TASKS[task].configs)
                    raise UserError(f'There is no model {model}; choose from {known}.')
                run(task, model, seed, args.threads)
    write_report(read_records())
    return 0


def read_records() -> list[dict[str, Any]]:
    """The runs of the page, and those that were made since."""
    earlier = json.loads(RECORDS.read_text(encoding='utf-8')) if RECORDS.is_file() else []
    new = [json.loads(p.read_text(encoding='utf-8')) for p in sorted(OUT.glob('*/record.json'))]
    if not earlier and not new:
        raise UserError(f'There are no finished runs in {OUT}.')
    by_run = {(r['task'], r['model'], r['seed']): r for r in [*earlier, *new]}
    return [by_run[run] for run in sorted(by_run)]


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args(None)))
