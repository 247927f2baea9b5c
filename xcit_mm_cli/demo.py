"""Train, evaluate and show two models on drawn images."""

import argparse
from pathlib import Path

from xcit_mm.demo.run import run_demo
from xcit_mm.tables import format_metric

from .common import command


@command('demo')
def main(args: argparse.Namespace) -> int:
    out_dir = args.out_dir or Path('work_dirs') / ('demo_quick' if args.quick else 'demo')
    try:
        numbers = run_demo(out_dir, args.seed, args.quick)
    except KeyboardInterrupt:
        raise KeyboardInterrupt('Rerun the same command to resume.') from None
    print('  '.join(f'{name} {format_metric(name, value)}' for name, value in numbers.items()))
    print(f'Page: {out_dir / "index.html"}')
    return 0
