"""``python -m dev.benchmark``: speed and memory, compared with other backbones."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .report import run_benchmark


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.benchmark',
        description='Measure speed and memory of the backbone, of a training step and of whole '
        'detectors, compared with other backbones. Each measurement runs in its own process. '
        'Prints a table of targets and measurements, and writes docs/benchmark.md with plots and '
        'docs/benchmark.json. Linux only.',
    )
    parser.add_argument(
        '--quick', action='store_true', help='only the first rows, in about 5 minutes; no page'
    )
    parser.add_argument(
        '--out-dir', type=Path, default=Path('docs'), help='folder for the results (default: docs)'
    )
    args = parser.parse_args(argv)
    return min(run_benchmark(args.out_dir, args.quick), 1)


if __name__ == '__main__':
    sys.exit(main())
