"""Check the datasets of a config."""

import argparse
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.compat import revert_sync_bn
from xcit_mm.configs import innermost_datasets
from xcit_mm.datasets.check.datasets import build_lazily, find_problems
from xcit_mm.datasets.check.heads import check_heads
from xcit_mm.datasets.present import check_datasets
from xcit_mm.datasets.problems import Problem
from xcit_mm.errors import BUILD_ERRORS, UserError
from xcit_mm_runtime.files import check_writable, write_atomically

from .common import command, load_config, task_of


def class_counts(cfg: Config, path: str, datasets: dict[str, list[dict]]) -> list[Problem]:
    """The problem that heads of the model have another number of classes than the data.

    Args:
        cfg (Config): The config.
        path (str): Its name.
        datasets (dict[str, list[dict]]): The innermost datasets, by split.
    """
    if not cfg.get('model') or not cfg.get('check_classes', True):
        return []
    revert_sync_bn(cfg)
    try:
        model = MODELS.build(cfg.model)
    except BUILD_ERRORS:
        return []  # this command is for data; training says what is wrong with the model
    try:
        for split, configs in datasets.items():
            for config in configs:
                check_heads(model, cfg.model, build_lazily(config).metainfo, f'{split} data')
    except UserError as error:
        return [Problem('config: class count', path, str(error))]
    return []


@command('check')
def main(args: argparse.Namespace) -> int:
    if args.json and Path(args.json).exists() and not args.force:
        raise UserError(f'{args.json} already exists; --force overwrites it.')
    cfg = load_config(args.config, args.cfg_options)
    if args.json:
        check_writable(args.json)
    init_default_scope(task_of(cfg))
    loaders = {split: f'{split}_dataloader' for split in args.split}
    check_datasets(cfg, tuple(loaders.values()), draw=False)
    datasets = {split: list(innermost_datasets(cfg.get(name))) for split, name in loaders.items()}
    if not any(datasets.values()):
        raise UserError(f'The config has no dataset in {" or ".join(loaders.values())}.')
    try:
        report = find_problems(datasets, args.workers)
    except TypeError as error:
        raise UserError(f'This dataset cannot be checked: {error}.') from None
    report.problems += class_counts(cfg, args.config, datasets)
    if report.problems:
        print(report.describe() + '\n')
    notes = len(report.problems) - report.errors
    print(f'{report.images} images: {report.errors} errors, {notes} notes')
    if args.json:
        write_atomically(args.json, report.to_json())
        print(f'all problems: {args.json}')
    return 1 if report.errors else 0
