"""A long run of inference in one process: nothing may fail, change or grow.

A detector and a segmentor with random weights look at the same images round after round, and eight
processes read their checkpoints at once. Exit status 1 if anything failed, if results differ from
those of the first round, or if memory grew by over 2 % after it. Linux only.
"""

import argparse
import time
from pathlib import Path

from xcit_mm.cli.common import command
from xcit_mm.errors import UserError
from xcit_mm.soak import MAX_GROWTH, soak


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--minutes', type=float, default=30, help='default: %(default)s')
    parser.add_argument(
        '--images', type=int, default=200, help='images a round (default: %(default)s)'
    )
    parser.add_argument('--size', type=int, default=64, help='pixels (default: %(default)s)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('work_dirs/soak') / time.strftime('%Y%m%d_%H%M%S'),
        help='where soak.json goes (default: work_dirs/soak/TIME)',
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if (args.out_dir / 'soak.json').exists():
        raise UserError(f'{args.out_dir / "soak.json"} exists already; --out-dir goes elsewhere.')
    try:
        report = soak(args.minutes, args.images, args.size, args.out_dir)
    except ValueError as error:
        raise UserError(f'{error} (--images, --size)') from None
    print('minute  memory (MB)')
    step = -(-len(report.memory) // 20)
    for minute, memory in list(zip(report.minutes, report.memory, strict=True))[::step]:
        print(f'{minute:6.1f}  {memory:.1f}')
    for failure in report.failures:
        print(f'failed: {failure}')
    print(f'{report}\nall rounds: {args.out_dir / "soak.json"}')
    return 1 if report.failures or report.growth > MAX_GROWTH else 0


if __name__ == '__main__':
    command(main)()
