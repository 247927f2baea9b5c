"""``xcit-mm train``: train a detector, a segmentor, a classifier or a backbone."""

from __future__ import annotations

import argparse
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_config, add_flag, add_run_options, positive, seed

if TYPE_CHECKING:
    from mmengine.config import Config

# Initializations that read a file.
PRETRAINED = ('Pretrained', 'PretrainedXCiT')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Train a detector, a segmentor or a classifier. For several processes: tools/dist_train.sh.'
    )
    add_config(parser)
    add_run_options(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from a checkpoint; without one, from the latest in the work folder',
    )
    add_flag(
        parser,
        '--amp',
        'mixed precision (needs CUDA); all but the segmentors use it on a GPU anyway',
    )
    add_flag(
        parser,
        '--auto-scale-lr',
        "scale the learning rate from the config's batch size to the one in use",
    )
    parser.add_argument('--seed', type=seed, help='seed of all random numbers')
    add_flag(parser, '--deterministic', 'deterministic algorithms only (slower)')
    validation = parser.add_mutually_exclusive_group()
    validation.add_argument(
        '--no-validate', action='store_true', help='no validation during training'
    )
    validation.add_argument(
        '--overfit',
        type=positive,
        metavar='N',
        help='train on the first N images alone, without augmentation, and say whether the model '
        'can learn them: the first thing to try when nothing works (8 is a good number)',
    )


def run(args: argparse.Namespace) -> int:
    from mmengine.logging import print_log
    from mmengine.runner import find_latest_checkpoint

    from xcit_mm.datasets.present import check_datasets
    from xcit_mm.engine.config import build_runner, load_config, scope_of
    from xcit_mm.engine.overfit import judge, use_few_images
    from xcit_mm.engine.training import choose_start, train

    from .common import check_checkpoint, config_name, prepare_run

    cfg = load_config(args.config, args.cfg_options)
    scope_of(cfg)
    apply_arguments(cfg, args)
    check_checkpoint(cfg.get('load_from'))
    init_cfg = cfg.model.get('backbone', {}).get('init_cfg') or {}
    if isinstance(init_cfg, dict) and init_cfg.get('type') in PRETRAINED:
        check_checkpoint(init_cfg.get('checkpoint'))
    if args.overfit:
        use_few_images(cfg, args.overfit)
        # Not where a training on all images keeps its checkpoints.
        args.work_dir = args.work_dir or f'work_dirs/{config_name(args.config)}_overfit'
    check_datasets(cfg, ('train_dataloader', 'val_dataloader'))
    prepare_run(cfg, args)
    choose_start(cfg, args.resume)
    if cfg.get('resume'):
        check_checkpoint(cfg.get('load_from') or find_latest_checkpoint(cfg.work_dir))
    runner = build_runner(cfg, args.config)
    if not cfg.get('resume') and (Path(cfg.work_dir) / 'last_checkpoint').is_file():
        print_log(
            f'{cfg.work_dir} has checkpoints of an earlier run, which this run will overwrite. '
            'To continue that run instead, stop this one and add --resume.',
            'current',
            WARNING,
        )
    train(runner)
    if args.overfit:
        print_log(judge(runner), 'current')
    print_log(f'Done: checkpoints and logs are in {cfg.work_dir}', 'current')
    return 0


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write the arguments into the config."""
    import torch

    from xcit_mm.errors import UserError

    if args.amp:
        if not torch.cuda.is_available():
            raise UserError('--amp needs a CUDA device, and there is none.')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError(
                '--auto-scale-lr needs auto_scale_lr = dict(base_batch_size=...) in the config.'
            )
        cfg.auto_scale_lr.enable = True
    if args.seed is not None or args.deterministic:
        cfg.randomness = {'seed': None, **cfg.get('randomness', {})}
        if args.seed is not None:
            cfg.randomness.seed = args.seed
        if args.deterministic:
            cfg.randomness.deterministic = True
    if cfg.get('param_scheduler') is None:
        cfg.param_scheduler = []  # the same, without mmengine's warning at each checkpoint
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if args.resume not in (None, 'auto'):
        cfg.resume, cfg.load_from = True, args.resume
