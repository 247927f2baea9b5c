"""``xcit-mm check``: check the datasets of a config."""

import argparse
import os

from .options import add_cfg_options, add_config, add_flag, positive

SPLITS = ('train', 'val', 'test')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Check the datasets of a config: decode every image and label, inspect every annotation, '
        'and compare the objects with what the detector of the config can reach. Exit status: 0 '
        'if a run can use all of it, 1 if there are errors, 2 if it could not be checked.'
    )
    add_config(parser)
    parser.add_argument(
        '--split', nargs='+', choices=SPLITS, default=SPLITS, help='default: all three'
    )
    add_cfg_options(parser)
    parser.add_argument(
        '--workers',
        type=positive,
        default=os.cpu_count() or 1,
        help='images to decode at once (default: the number of processors, %(default)s)',
    )
    parser.add_argument('--json', metavar='FILE', help='write all problems to a JSON file')
    add_flag(parser, '--force', 'overwrite --json')


def run(args: argparse.Namespace) -> int:
    from mmengine.registry import init_default_scope

    from xcit_mm.configs import innermost_datasets
    from xcit_mm.datasets.check.datasets import find_problems
    from xcit_mm.datasets.check.fit import FitReport
    from xcit_mm.datasets.check.heads import find_class_problems
    from xcit_mm.datasets.present import check_datasets
    from xcit_mm.engine.config import load_config, scope_of
    from xcit_mm.errors import UserError
    from xcit_mm.tables import format_table
    from xcit_mm_runtime.files import write_atomically

    from .common import check_output

    cfg = load_config(args.config, args.cfg_options)
    check_output(args.json, args.force)
    init_default_scope(scope_of(cfg))
    loaders = {split: f'{split}_dataloader' for split in args.split}
    check_datasets(cfg, tuple(loaders.values()), draw=False)
    datasets = {split: list(innermost_datasets(cfg.get(name))) for split, name in loaders.items()}
    if not any(datasets.values()):
        raise UserError(f'The config has no dataset in {" or ".join(loaders.values())}.')
    try:
        report = find_problems(datasets, args.workers)
    except TypeError as error:
        raise UserError(f'This dataset cannot be checked: {error}.') from None
    report.problems += find_class_problems(cfg, args.config, datasets)
    fit = FitReport(cfg, report.objects)
    report.problems += fit.problems(args.config)
    if rows := fit.rows():
        print(format_table(rows) + '\n')
    if report.problems:
        print(report.describe() + '\n')
    notes = len(report.problems) - report.errors
    print(f'{report.images} images: {report.errors} errors, {notes} notes')
    if args.json:
        write_atomically(args.json, report.to_json())
        print(f'all problems: {args.json}')
    return 1 if report.errors else 0
