"""``xcit-mm demo``: train, evaluate and show two models on drawn images."""

import argparse
from pathlib import Path

from .options import add_flag, seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Train Mask R-CNN and Semantic FPN on XCiT-N12/8 from scratch on drawn images, evaluate '
        'them, and write a page with numbers, curves and pictures. The images go to data/shapes/. '
        'If interrupted, rerun it to resume.'
    )
    add_flag(parser, '--quick', 'about 3 minutes, too short for meaningful accuracy')
    parser.add_argument('--seed', type=seed, default=0, help='seed of the training (default: 0)')
    parser.add_argument(
        '--out-dir',
        type=Path,
        help='where everything goes (default: work_dirs/demo, or work_dirs/demo_quick)',
    )


def run(args: argparse.Namespace) -> int:
    from xcit_mm.demo.demo import run_demo
    from xcit_mm.tables import format_metric

    out_dir = args.out_dir or Path('work_dirs') / ('demo_quick' if args.quick else 'demo')
    try:
        numbers = run_demo(out_dir, args.seed, args.quick)
    except KeyboardInterrupt:
        raise KeyboardInterrupt('Rerun the same command to resume.') from None
    print('  '.join(f'{name} {format_metric(name, value)}' for name, value in numbers.items()))
    print(f'Page: {out_dir / "index.html"}')
    return 0
