"""``python -m dev.benchmark``: speed and memory, compared with other backbones."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from xcit_mm_cli.common import explain_errors

from . import jobs
from .gpu import CASES, run_gpu_benchmark
from .report import run_benchmark
from .run_time import BATCHES, RESOLUTIONS, measure_run_time


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.benchmark',
        description='Measure speed and memory of the backbone, of a training step and of whole '
        'detectors, compared with other backbones. Each measurement runs in its own process. '
        'Prints a table of targets and measurements, and writes docs/studies/benchmark.md with '
        'plots and benchmark.json. On a GPU: eager and compiled backbones and Mask R-CNN, in '
        'float32 and with AMP, as one table for an issue. Linux only.',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='only the first rows, in about 5 minutes; no page on a CPU',
    )
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='folder for the results (default: docs/studies, or work_dirs/benchmark_cuda on a GPU)',
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), default='cpu', help='where to measure (default: cpu)'
    )
    parser.add_argument(
        '--run-time',
        action='store_true',
        help="the paper's table of run time instead: classifiers, batches of 1 and 64, up to "
        '1024x1024; writes run_time.md and run_time.json (about 25 minutes on 2 cores)',
    )
    parser.add_argument(
        '--memory-limit',
        type=float,
        default=16.0,
        metavar='GB',
        help='with --run-time, what a process may use on a CPU (default: 16)',
    )
    args = parser.parse_args(argv)
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: torch finds no GPU here')
    jobs.DEVICE = args.device
    folder = 'docs/studies' if args.device == 'cpu' else 'work_dirs/benchmark_cuda'
    args.out_dir = args.out_dir or Path(folder)
    return explain_errors(run, args)


def run(args: argparse.Namespace) -> int:
    if args.run_time:
        sizes, batches = (RESOLUTIONS[:1], BATCHES[:1]) if args.quick else (RESOLUTIONS, BATCHES)
        measure_run_time(args.out_dir, sizes, batches, args.memory_limit)
        return 0
    if args.device == 'cpu':
        return min(run_benchmark(args.out_dir, args.quick), 1)
    return min(run_gpu_benchmark(args.out_dir, CASES[:4] if args.quick else CASES), 1)


if __name__ == '__main__':
    sys.exit(main())
