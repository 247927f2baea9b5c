"""Check the data sets of a config."""

import argparse
import os
from pathlib import Path

from mmengine.registry import init_default_scope

from ..datasets.check import find_problems
from ..errors import UserError
from ..tables import format_table
from .common import (
    add_config_options,
    check_datasets,
    innermost_datasets,
    load_config,
    task_of,
)

SPLITS = ('train', 'val', 'test')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Check the data sets of a config: decodes every image and label and looks at '
        'every annotation. Exit status: 0 if a run can use all of it, 1 if there are errors, 2 if '
        'it could not be checked.'
    )
    parser.add_argument('config', help='a config file, or xcit_mm::detection/NAME.py')
    parser.add_argument(
        '--split', nargs='+', choices=SPLITS, default=SPLITS, help='default: all three'
    )
    add_config_options(parser)
    parser.add_argument(
        '--workers',
        type=int,
        default=os.cpu_count() or 1,
        help='images that are decoded at once (default: the number of processors, %(default)s)',
    )
    parser.add_argument('--json', metavar='FILE', help='write all problems to a JSON file')
    parser.add_argument('--force', action='store_true', help='overwrite --json')
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.json and Path(args.json).exists() and not args.force:
        raise UserError(f'{args.json} exists already; --force overwrites it.')
    if args.workers < 1:
        raise UserError(f'--workers must be at least 1, not {args.workers}.')
    cfg = load_config(args.config, args.cfg_options)
    init_default_scope(task_of(cfg))
    loaders = {split: f'{split}_dataloader' for split in args.split}
    check_datasets(cfg, tuple(loaders.values()))
    datasets = {split: list(innermost_datasets(cfg.get(name))) for split, name in loaders.items()}
    try:
        report = find_problems(datasets, args.workers)
    except TypeError as error:
        raise UserError(f'This data set cannot be checked: {error}.') from None
    if report.problems:
        print(format_table(report.rows()) + '\n')
        print('\n'.join(report.examples()) + '\n')
    notes = len(report.problems) - report.errors
    print(f'{report.images} images: {report.errors} errors, {notes} notes')
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(report.to_json(), encoding='utf-8')
        print(f'all problems: {args.json}')
    return 1 if report.errors else 0
