"""``python -m dev.cpu_matrix``: the model tests with other instruction sets and thread counts."""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from xcit_mm.tables import format_table

# The most that a CPU has to offer, and what torch, MKL and oneDNN call it. Each may still choose
# less; none can choose more.
INSTRUCTIONS = {
    'SSE4': ('default', 'SSE4_2', 'SSE41'),
    'AVX2': ('avx2', 'AVX2', 'AVX2'),
    'AVX-512': ('avx512', 'AVX512', 'AVX512_CORE'),
}
VARIABLES = ('ATEN_CPU_CAPABILITY', 'MKL_ENABLE_INSTRUCTIONS', 'ONEDNN_MAX_CPU_ISA')
FLAGS = {'SSE4': 'sse4_2', 'AVX2': 'avx2', 'AVX-512': 'avx512f'}


def available() -> list[str]:
    """Return the instruction sets that this CPU has."""
    cpuinfo = Path('/proc/cpuinfo').read_text()
    return [name for name, flag in FLAGS.items() if re.search(rf'\b{flag}\b', cpuinfo)]


def run_tests(instructions: str, threads: int, tests: Sequence[str]) -> dict[str, str | int]:
    """Run the tests, and return one row of the table.

    Args:
        instructions (str): A key of :data:`INSTRUCTIONS`.
        threads (int): Number of threads.
        tests (Sequence[str]): Arguments of pytest.
    """
    limits = dict(zip(VARIABLES, INSTRUCTIONS[instructions], strict=True))
    environment = {**os.environ, **limits, 'OMP_NUM_THREADS': str(threads)}
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:xdist', *tests]
    start = time.monotonic()
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    failed = re.findall(r'^(?:FAILED|ERROR) (\S+)', run.stdout, re.MULTILINE)
    for name in failed:
        print(f'{instructions}, {threads} threads: {name}', flush=True)
    passed = re.search(r'(\d+) passed', run.stdout)
    return {
        'instructions': instructions,
        'threads': threads,
        'passed': int(passed[1]) if passed else 0,
        'failed': len(failed) or int(run.returncode != 0),
        'seconds': round(time.monotonic() - start),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.cpu_matrix',
        description='Run the model tests with each instruction set that this CPU has, with 1 and 2 '
        'threads, and print a table. Takes about 3 minutes per row. Linux on x86 only.',
    )
    parser.add_argument(
        'tests', nargs='*', default=['tests/models'], help='tests to run (default: tests/models)'
    )
    args = parser.parse_args(argv)
    rows = []
    for instructions in available():
        for threads in (1, 2):
            rows.append(run_tests(instructions, threads, args.tests))
            print(format_table(rows[-1:]), flush=True)
    print('\n' + format_table(rows, 'markdown'))
    return int(any(row['failed'] for row in rows))


if __name__ == '__main__':
    sys.exit(main())
