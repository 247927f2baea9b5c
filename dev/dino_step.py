"""``python -m dev.dino_step``: time and memory of a DINO step on our XCiT and on timm's."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from xcit_mm.cli.common import explain_errors
from xcit_mm.tables import format_table

from .benchmark.jobs import run_job, speedup
from .pages import write_between_marks

PAGE = Path('docs/pretraining.md')
SIZE = (224, 224)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.dino_step',
        description='Measure a DINO step, from the crops to the gradients, on our XCiT and on the '
        "one of timm, with the same weights and DINO's own head: 2 crops of 224x224 and "
        '8 of 96x96 per image. Times alternate within one process; memory is measured in a process '
        'of its own. Writes the table of docs/pretraining.md. Linux only.',
    )
    parser.add_argument('--archs', nargs='+', default=['s12', 'n12'], help='default: s12 n12')
    parser.add_argument('--batch', type=int, default=8, help='images per step (default: 8)')
    parser.add_argument(
        '--repetitions', type=int, default=7, help='how often each is timed (default: 7)'
    )
    parser.add_argument(
        '--threads', type=int, default=os.cpu_count() or 1, help='default: one per core'
    )
    parser.add_argument('--no-page', action='store_true', help='print the table alone')
    return parser.parse_args(argv)


def measure(arch: str, batch: int, repetitions: int, threads: int) -> dict[str, Any]:
    """A row of the table.

    Args:
        arch (str): Size of the XCiT; patches are 16x16.
        batch (int): Images per step.
        repetitions (int): How often each network is timed.
        threads (int): Threads of torch.
    """
    pair = [{'name': name, 'arch': arch} for name in ('timm', 'ours')]
    settings: dict[str, Any] = dict(size=SIZE, mode='dino', threads=threads)
    apart = run_job('agreement', pair, batch=2, **settings)
    times = run_job('pair', pair, repetitions=repetitions, batch=batch, **settings)['times']
    theirs, ours = (
        run_job('one', [one], repetitions=1, batch=batch, **settings)['peak_MB'] / batch
        for one in pair
    )
    # speedup() divides the first times by the second: the time of ours over timm's.
    ratio = speedup(times[::-1])
    return {
        'network': f'{arch.upper()}/16',
        's per image, timm': f'{median(times[0]) / batch:.2f}',
        'ours': f'{median(times[1]) / batch:.2f}',
        'time': str(ratio),
        'MB per image, timm': round(theirs),
        'ours ': round(ours),
        'memory': f'{ours / theirs:.2f}x',
        'loss and gradients differ by': f'{apart["loss"]:.0e}, {apart["gradients"]:.0e}',
    }


def work(args: argparse.Namespace) -> int:
    rows = [
        measure(arch, args.batch, args.repetitions, args.threads)
        for arch in track(args.archs, 'measuring')
    ]
    print(format_table(rows))
    if not args.no_page:
        write_between_marks(PAGE, {'dino step': format_table(rows, 'markdown')})
        print(f'Page: {PAGE}')
    return 0


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args(None)))
