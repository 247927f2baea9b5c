"""Runs the benchmark and writes its table, JSON, plots and page."""

import json
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from xcit_mm.files import write_atomically
from xcit_mm.tables import format_table

from . import peers
from .bars import Result, bars

NOTE = (
    'Float32, 2 threads, batch 1. A speed is the ratio of medians in one run, alternating order '
    'after a warm-up, with the range over the repetitions in brackets. Memory is the peak of a '
    'fresh process above what it held with the weights loaded.'
)


def run_benchmark(folder: Path, quick: bool = False) -> int:
    """Measure everything, print the table and write the page.

    Args:
        folder (Path): Where ``benchmark.md``, ``benchmark.json`` and the plots go.
        quick (bool): Whether only the first rows are measured; then no page is written.

    Returns:
        int: How many bars were missed.
    """
    start = time.monotonic()
    planned = list(bars(quick))
    steps = len(planned) + (0 if quick else len(peers.LABELS) * (len(peers.RESOLUTIONS) + 1))
    columns = (
        TextColumn('{task.description:36}'),
        BarColumn(),
        TextColumn('{task.completed}/{task.total}'),
    )
    results: list[Result] = []
    scaling: list[dict[str, Any]] = []
    detectors: list[dict[str, Any]] = []
    with Progress(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task('', total=steps)

        def advance(description: str) -> None:
            progress.update(task, description=description, advance=1)

        for name, measure in planned:
            progress.update(task, description=name)
            results.append(measure())
            progress.console.print(f'{results[-1].what}: {results[-1].measured}')
            progress.advance(task)
        if not quick:
            scaling = peers.scaling(advance)
            detectors = peers.detectors(advance)
    print(format_table(_rows(results)))
    minutes = (time.monotonic() - start) / 60
    missed = [result.what for result in results if not result.met]
    print(f'{len(results) - len(missed)} of {len(results)} bars met in {minutes:.0f} minutes')
    machine = {'processor': _processor(), 'torch': torch.__version__, 'minutes': round(minutes, 1)}
    data = {'machine': machine, 'bars': [asdict(result) for result in results]}
    data |= {'scaling': scaling, 'detectors': detectors}
    path = folder / ('benchmark_quick.json' if quick else 'benchmark.json')
    write_atomically(path, json.dumps(data, indent=1) + '\n')
    print(f'Numbers: {path}')
    if not quick:
        write_page(folder, data)
        print(f'Page: {folder / "benchmark.md"}')
    return len(missed)


def write_page(folder: Path, data: dict[str, Any]) -> None:
    """Write ``benchmark.md`` and its plots from the numbers."""
    results = [Result(**row) for row in data['bars']]
    images = folder / 'images'
    images.mkdir(parents=True, exist_ok=True)
    for key, label, name in (
        ('seconds', 'seconds per image', 'benchmark_time.png'),
        ('peak_MB', 'peak memory above the weights, MB', 'benchmark_memory.png'),
    ):
        peers.plot_scaling(data['scaling'], key, label, str(images / name))
    machine = data['machine']
    parts = [
        '# Benchmark',
        f'Made by `make benchmark` in {machine["minutes"]} minutes on 2 cores of: '
        f'{machine["processor"]}, torch {machine["torch"]}.',
        NOTE,
        '## Against timm, on the same weights',
        format_table(_rows(results), 'markdown'),
        '## Against other backbones',
        'Inference as mmdet ships them: images per second and peak MB over the height and width of '
        'the image, the columns of the paper’s run-time table.',
        format_table(peers.paper_table(data['scaling']), 'markdown'),
        '![time](images/benchmark_time.png)',
        '![memory](images/benchmark_memory.png)',
        'Exponents of growth in the number of pixels:',
        format_table(peers.exponents(data['scaling']), 'markdown'),
        '## Whole detectors',
        'Mask R-CNN, inference on one image of 800x1344, random weights:',
        format_table(data['detectors'], 'markdown'),
    ]
    write_atomically(folder / 'benchmark.md', '\n\n'.join(parts) + '\n')


def _rows(results: list[Result]) -> list[dict[str, str]]:
    return [
        {
            'what': result.what,
            'bar': result.bar,
            'aim': result.aim,
            'measured': result.measured,
            'met': 'yes' if result.met else 'NO',
        }
        for result in results
    ]


def _processor() -> str:
    for line in Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('model name'):
            return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
