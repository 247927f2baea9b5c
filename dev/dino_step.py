"""``python -m dev.dino_step``: time and memory of a DINO step on our XCiT and on timm's."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from xcit_mm.models.variants import VARIANTS
from xcit_mm.tables import format_table
from xcit_mm_cli.arguments import positive
from xcit_mm_cli.common import explain_errors

from .benchmark.jobs import run_job, speedup
from .pages import write_between_marks

PAGE = Path('docs/studies/pretraining.md')
SIZE = (224, 224)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.dino_step',
        description='Measure a DINO step, from the crops to the gradients, on our XCiT and on the '
        "one of timm, with the same weights and DINO's own head: 2 crops of 224x224 and "
        '8 of 96x96 per image. Times alternate within one process; memory is measured in a process '
        'of its own. Writes the table of docs/studies/pretraining.md. Linux only.',
    )
    parser.add_argument(
        '--networks',
        nargs='+',
        type=network,
        default=[('s12', 16), ('n12', 16), ('s12', 8)],
        metavar='ARCH/PATCH',
        help='default: s12/16 n12/16 s12/8',
    )
    parser.add_argument(
        '--batch',
        type=positive,
        default=8,
        help='images per step with patches of 16x16; a quarter of it with 8x8 (default: 8)',
    )
    parser.add_argument(
        '--repetitions', type=positive, default=7, help='how often each is timed (default: 7)'
    )
    parser.add_argument(
        '--threads', type=positive, default=os.cpu_count() or 1, help='default: one per core'
    )
    parser.add_argument('--no-page', action='store_true', help='print the table alone')
    return parser.parse_args(argv)


def network(text: str) -> tuple[str, int]:
    """Size and patch size from a name such as ``s12/16``."""
    arch, _, patch = text.lower().partition('/')
    if arch not in VARIANTS or patch not in ('8', '16'):
        known = ', '.join(VARIANTS)
        raise argparse.ArgumentTypeError(f'{text!r} is not one of {known}, followed by /8 or /16')
    return arch, int(patch)


def measure(
    arch: str, patch_size: int, batch: int, repetitions: int, threads: int
) -> dict[str, Any]:
    """A row of the table.

    Args:
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        batch (int): Images per step with patches of 16x16; fewer with more tokens per image.
        repetitions (int): How often each network is timed.
        threads (int): Threads of torch.
    """
    batch = max(batch * patch_size**2 // 16**2, 1)
    pair = [{'name': name, 'arch': arch, 'patch_size': patch_size} for name in ('timm', 'ours')]
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
        'network': f'{arch.upper()}/{patch_size}',
        'images': batch,
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
        measure(arch, patch_size, args.batch, args.repetitions, args.threads)
        for arch, patch_size in track(args.networks, 'measuring')
    ]
    print(format_table(rows))
    if not args.no_page:
        write_between_marks(PAGE, {'dino step': format_table(rows, 'markdown')})
        print(f'Page: {PAGE}')
    return 0


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args(None)))
