"""``xcit-mm train``: train a detector, a segmentor, a classifier or a backbone."""

from __future__ import annotations

import argparse
import os
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_config, add_flag, add_run_options, seed

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

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
    add_flag(parser, '--no-validate', 'no validation during training')


def run(args: argparse.Namespace) -> int:
    from mmengine.logging import print_log
    from mmengine.runner import find_latest_checkpoint

    from xcit_mm.datasets.present import check_datasets

    from .common import build_runner, check_checkpoint, load_config, prepare_run, task_of

    cfg = load_config(args.config, args.cfg_options)
    task_of(cfg)
    apply_arguments(cfg, args)
    check_checkpoint(cfg.get('load_from'))
    init_cfg = cfg.model.get('backbone', {}).get('init_cfg') or {}
    if isinstance(init_cfg, dict) and init_cfg.get('type') in PRETRAINED:
        check_checkpoint(init_cfg.get('checkpoint'))
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


def choose_start(cfg: Config, resume: str | None) -> None:
    """Resume from the latest checkpoint if that was asked for and there is one.

    Without one, the run starts as the config says. If torchrun may restart the run, it is asked for
    each time: after a restart of the machine, nothing else tells that this is not the first start.

    Args:
        cfg (Config): The config, with its work folder.
        resume (str, optional): ``auto`` or a checkpoint.
    """
    from mmengine.runner import find_latest_checkpoint

    from xcit_mm.errors import UserError

    if int(os.environ.get('TORCHELASTIC_MAX_RESTARTS', 0)) > 0:
        if resume not in (None, 'auto'):
            raise UserError(
                f'--resume {resume} would start again from this checkpoint after each restart. '
                'With MAX_RESTARTS, a run resumes from the latest checkpoint in its work folder: '
                f'leave out --resume. To start from these weights: --cfg-options load_from={resume}'
            )
        resume = 'auto'
    if resume == 'auto' and find_latest_checkpoint(cfg.work_dir) is not None:
        cfg.resume, cfg.load_from = True, None


def train(runner: Runner) -> None:
    """Train; raise a UserError for what a user can fix."""
    from xcit_mm.engine import ProgressBarHook, describe_resume_point
    from xcit_mm.errors import UserError
    from xcit_mm.weights import DownloadError

    from .common import DISK_FULL

    try:
        runner.train()
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise UserError(
            f'{error.filename or "A file"} could not be written: {error.strerror}. '
            f'{describe_resume_point(runner.work_dir)} Free some space first; '
            'default_hooks.checkpoint.max_keep_ckpts limits how many checkpoints are kept.'
        ) from None
    except DownloadError as error:
        setting = 'load_from' if runner.cfg.get('load_from') else 'model.backbone.init_cfg'
        raise UserError(
            f'{error} To train from scratch, add --cfg-options {setting}=None; for your own data, '
            '"xcit-mm init" with --scratch writes a config with a schedule for that.'
        ) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_resume_point(runner.work_dir)) from None
    finally:
        for hook in runner.hooks:
            if isinstance(hook, ProgressBarHook):
                hook.stop()  # the bar must not overdraw an error
