"""Train, evaluate and look, in minutes, on data that is drawn on the spot.

Trains Mask R-CNN and Semantic FPN on XCiT-N12/8 from scratch by tools/train.py, evaluates them by
tools/test.py, and writes a page with numbers, curves and pictures. Interrupted, it goes on where it
was when it is run again.
"""

import argparse
import os
from pathlib import Path

from xcit_mm.cli.common import command
from xcit_mm.demo.run import CONTROL_RECORD, run_control, run_demo
from xcit_mm.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--quick', action='store_true', help='a minute or two, with whatever numbers that gives'
    )
    form.add_argument(
        '--control',
        action='store_true',
        help='instead, train Semantic FPN with and without cross-covariance attention, as in the '
        "paper's ablation, on images half of which have dark shapes on light grounds; ten minutes, "
        'numbers only, no page',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the trainings (default: 0)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='where everything goes (default: work_dirs/demo; demo_quick with --quick, '
        'demo_control with --control)',
    )
    args = parser.parse_args()
    name = 'demo_control' if args.control else 'demo_quick' if args.quick else 'demo'
    # The commands are run in the repository, and shown as a user there would type them.
    out_dir = Path(os.path.relpath(args.out_dir or ROOT / 'work_dirs' / name, ROOT))
    os.chdir(ROOT)
    try:
        if args.control:
            numbers = run_control(ROOT, out_dir, args.seed)
        else:
            numbers = run_demo(ROOT, out_dir, args.seed, args.quick)
    except (RuntimeError, FileExistsError) as error:
        raise UserError(str(error)) from None
    print('  '.join(f'{name} {value:.3f}' for name, value in numbers.items()))
    made = CONTROL_RECORD if args.control else 'index.html'
    print(f'{"Numbers" if args.control else "Page"}: {out_dir / made}')


if __name__ == '__main__':
    command(main)()
