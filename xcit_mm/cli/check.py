"""Check the data sets of a config."""

import argparse
from pathlib import Path

from mmengine.registry import init_default_scope

from ..configs import innermost_datasets
from ..datasets.check import find_problems
from ..errors import UserError
from ..files import check_writable, write_atomically
from ..tables import format_table
from .common import check_datasets, command, load_config, task_of


@command('check')
def main(args: argparse.Namespace) -> int:
    if args.json and Path(args.json).exists() and not args.force:
        raise UserError(f'{args.json} already exists; --force overwrites it.')
    cfg = load_config(args.config, args.cfg_options)
    if args.json:
        check_writable(args.json)
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
        write_atomically(args.json, report.to_json())
        print(f'all problems: {args.json}')
    return 1 if report.errors else 0
