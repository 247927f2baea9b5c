"""Measures eager and compiled networks on a GPU, and writes a page that can be pasted."""

import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mmcv
import mmdet
import mmengine
import timm
import torch

import xcit_mm
from dev.pages import write_numbers, write_page
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm_runtime.progress import progress_bar

from . import jobs
from .jobs import run_job, speedup, timm_and_ours

REPETITIONS = 11


class Case(NamedTuple):
    """A line of the table."""

    mode: str
    arch: str
    patch_size: int
    batch: int
    size: tuple[int, int]

    def __str__(self) -> str:
        height, width = self.size
        network = f'{self.arch.upper()}/{self.patch_size}, {self.batch} x {height}x{width}'
        detector = 'Mask R-CNN ' if 'detect' in self.mode else ''
        work = 'training step' if self.mode.endswith(('train', 'learn to detect')) else 'inference'
        precision = 'AMP' if self.mode.startswith('amp ') else 'float32'
        return f'{detector}{network}, {work}, {precision}'


BACKBONE = ('infer', 'amp infer', 'train', 'amp train')
DETECTOR = ('amp detect', 'amp learn to detect')
CASES = [
    *(Case(mode, 's12', 16, 1, (224, 224)) for mode in BACKBONE),
    *(Case(mode, 's12', 16, 64, (224, 224)) for mode in BACKBONE),
    *(Case(mode, 's12', 16, 2, (800, 1344)) for mode in (*BACKBONE, *DETECTOR)),
    *(Case(mode, 's12', 8, 2, (800, 1344)) for mode in (*BACKBONE, *DETECTOR)),
]


def run_gpu_benchmark(folder: Path, cases: Sequence[Case] = CASES) -> int:
    """Measure each case, print the table and write the page.

    Args:
        folder (Path): Folder for ``benchmark.md`` and ``benchmark.json``.
        cases (Sequence[Case]): What is measured.

    Returns:
        int: How many cases did not fit into the memory of the GPU.
    """
    rows = []
    with progress_bar() as progress:
        task = progress.add_task('', total=len(cases))
        for case in cases:
            progress.update(task, description=str(case), advance=1)
            rows.append(measure(case))
            print(format_table(rows[-1:]), flush=True)
    write_numbers(folder / 'benchmark.json', {'machine': machine(), 'rows': rows})
    page = folder / 'benchmark.md'
    write_page(page, page_text(rows))
    print(f'The table is in {page}. Please paste it into an issue.')
    return sum('ours' not in row for row in rows)


def measure(case: Case) -> dict[str, str]:
    """Return a line of the table: milliseconds, speedups and peak memory."""
    timm_xcit, ours = timm_and_ours(case.arch, case.patch_size)
    candidates = {'timm': timm_xcit, 'ours': ours, 'ours compiled': {**ours, 'compile': True}}
    settings: dict[str, Any] = {'size': case.size, 'mode': case.mode, 'batch': case.batch}
    line = {'ms (speedup), MB above the weights': str(case)}
    try:
        all_times = run_job(
            'several', list(candidates.values()), repetitions=REPETITIONS, **settings
        )['times']
        for (name, candidate), times in zip(candidates.items(), all_times, strict=True):
            peak = run_job('one', [candidate], repetitions=1, **settings)['peak_MB']
            line[name] = f'{1e3 * statistics.median(times):.1f}'
            if name != 'timm':
                line[name] += f' ({speedup([all_times[0], times]).value:.2f}x)'
            line[name] += f', {peak:.0f} MB'
    except UserError as error:
        if 'out of memory' not in str(error):
            raise
        line['timm'] = 'out of memory'
    return line


def page_text(rows: Sequence[dict[str, str]]) -> str:
    """Return the page."""
    versions = '\n'.join(f'- {name}: {value}' for name, value in machine().items())
    return f"""# Benchmark on a GPU

Made by `make benchmark DEVICE=cuda`.

{versions}

Medians of {REPETITIONS} runs, which alternate between the networks in one process after a warm-up,
on the same weights, without stochastic depth; memory is the peak of a process of its own. A
training step is forward and backward, without the optimizer. "ours compiled" has `compile=True`.

{format_table(rows, 'markdown')}
"""


def machine() -> dict[str, str]:
    """Return the card, its driver and the versions that matter."""
    packages = (torch, timm, mmengine, mmcv, mmdet, xcit_mm)
    return {
        **gpu(),
        'CUDA of PyTorch': torch.version.cuda or 'none',
        'Python': platform.python_version(),
        **{package.__name__: package.__version__ for package in packages},
    }


def gpu() -> dict[str, str]:
    """Return the card, and its driver as nvidia-smi tells it."""
    if jobs.DEVICE == 'cpu':
        return {'card': 'none: this ran on a CPU', 'driver': 'none'}
    words = ['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader']
    try:
        driver = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = 'unknown'
    return {'card': torch.cuda.get_device_name(), 'driver': driver}
