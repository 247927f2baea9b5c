"""Train, evaluate and look, in minutes, on data that is drawn on the spot.

Trains Mask R-CNN and Semantic FPN on XCiT-N12/8 from scratch by tools/train.py, evaluates them by
tools/test.py, and writes a page with numbers, curves and pictures. Interrupted, it goes on where it
was when it is run again.
"""

import argparse
from pathlib import Path

from xcit_mm.cli.common import UserError, command
from xcit_mm.demo.run import run_demo

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--quick', action='store_true', help='a minute or two, with whatever numbers that gives'
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the trainings (default: 0)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='where everything goes (default: work_dirs/demo; with --quick work_dirs/demo_quick)',
    )
    args = parser.parse_args()
    out_dir = args.out_dir or Path('work_dirs', 'demo_quick' if args.quick else 'demo')
    try:
        numbers = run_demo(ROOT, out_dir.resolve(), args.seed, args.quick)
    except (RuntimeError, FileExistsError) as error:
        raise UserError(str(error)) from None
    print('  '.join(f'{name} {value:.3f}' for name, value in numbers.items()))
    print(f'Page: {out_dir / "index.html"}')


if __name__ == '__main__':
    command(main)()
