"""``python -m dev.dino_step``: time and memory of a DINO step on our XCiT and on timm's."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from xcit_mm.tables import format_table
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.progress import track

from .benchmark.jobs import run_job, speedup, timm_and_ours
from .pages import write_between_marks

PAGE = Path('docs/studies/pretraining.md')
# Networks and images per step: fewer with more tokens per image.
NETWORKS = (('s12', 16, 8), ('n12', 16, 8), ('s12', 8, 2))
REPETITIONS = 7


def measure(arch: str, patch_size: int, batch: int) -> dict[str, Any]:
    """Return a row of the table.

    Args:
        arch (str): Size of the XCiT.
        patch_size (int): 8 or 16.
        batch (int): Images per step.
    """
    pair = timm_and_ours(arch, patch_size)
    settings: dict[str, Any] = dict(size=(224, 224), mode='dino')
    apart = run_job('agreement', pair, batch=2, **settings)
    times = run_job('several', pair, repetitions=REPETITIONS, batch=batch, **settings)['times']
    theirs, ours = (
        run_job('one', [one], repetitions=1, batch=batch, **settings)['peak_MB'] / batch
        for one in pair
    )
    return {
        'network': f'{arch.upper()}/{patch_size}',
        'images': batch,
        's per image, timm': f'{median(times[0]) / batch:.2f}',
        'ours': f'{median(times[1]) / batch:.2f}',
        # The other way round than a speed-up: the time of ours over timm's.
        'time': str(speedup(times[::-1])),
        'MB per image, timm': round(theirs),
        'ours ': round(ours),
        'memory': f'{ours / theirs:.2f}x',
        'loss and gradients differ by': f'{apart["loss"]:.0e}, {apart["gradients"]:.0e}',
    }


def work(args: argparse.Namespace) -> int:
    rows = [measure(*network) for network in track(NETWORKS, 'measuring')]
    print(format_table(rows))
    write_between_marks(PAGE, {'dino step': format_table(rows, 'markdown')})
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m dev.dino_step',
        description='Measure a DINO step, from the crops to the gradients, on our XCiT and on the '
        "one of timm, with the same weights and DINO's own head: 2 crops of 224x224 and "
        '8 of 96x96 per image. Times alternate within one process; memory is measured in a process '
        'of its own. Writes the table of docs/studies/pretraining.md. Linux only.',
    )
    return explain_errors(work, parser.parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
