"""Starts a training, and says how to continue one that ends early."""

import os

from mmengine.config import Config
from mmengine.runner import Runner, find_latest_checkpoint

from ..errors import DISK_FULL, UserError
from ..weights import DownloadError
from .checkpoint import describe_resume_point
from .progress import ProgressBarHook


def choose_start(cfg: Config, resume: str | None) -> None:
    """Resume from the latest checkpoint if that was asked for and there is one.

    Without one, the run starts as the config says. If torchrun may restart the run, it is asked for
    each time: after a restart of the machine, nothing else tells that this is not the first start.

    Args:
        cfg (Config): The config, with its work folder.
        resume (str, optional): ``auto`` or a checkpoint.
    """
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
