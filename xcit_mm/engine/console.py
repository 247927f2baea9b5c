"""What the console shows of a run: a summary, not the noise; the log file has every line."""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.runner import find_latest_checkpoint

from xcit_mm_runtime.text import join_some

from ..configs import nested_dicts
from ..version import __version__

if TYPE_CHECKING:
    from .runner import GuardedRunner

# What mmengine, mmdet and mmseg say about their own code. A user cannot do anything about it.
NOISE = (
    r'``build_loss`` would be deprecated',
    r'Default ``avg_non_ignore`` is False',
    r'The draw is False, it means that the hook for visualization',
    r'`reduce_zero_label` will be deprecated',
    r'Failed to add <class .*VisBackend',
    r'"FileClient" will be deprecated',
    r'"HardDiskBackend" is the alias',
    r'The prefix is not set in metric class',
    r'For binary segmentation, we suggest using',
    # One line for each frozen parameter; the start of a run counts them.
    r'\S+ is skipped since its requires_grad=False',
    # No package has a registry of functions; mmengine's inferencers ask for one.
    r'Failed to search registry with scope "\w+" in the "function" registry tree',
)


@contextlib.contextmanager
def without_noise(logger: logging.Logger) -> Iterator[None]:
    """Hide :data:`NOISE` among Python's warnings and on the console of a logger.

    Args:
        logger (Logger): The logger that is used until a run has its own.
    """
    hide_noise(logger)
    with warnings.catch_warnings():
        for pattern in NOISE:
            warnings.filterwarnings('ignore', pattern)
        yield


def hide_noise(logger: logging.Logger) -> None:
    """Hide :data:`NOISE` on the console of a logger."""
    for handler in console_handlers(logger):
        handler.addFilter(is_not_noise)


def console_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers of a logger that write to the screen, not to a file."""
    return [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]


def is_not_noise(record: logging.LogRecord) -> bool:
    """Return whether a record is of interest to a user."""
    return not any(re.match(pattern, str(record.msg)) for pattern in NOISE)


class StartFilter(logging.Filter):
    """Hides the details of a run's start: records below WARNING that are not marked as wanted."""

    starting = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a record."""
        is_wanted = getattr(record, 'wanted', False)
        return not self.starting or is_wanted or record.levelno >= logging.WARNING


def describe_run(runner: 'GuardedRunner', log_file: str | None) -> str:
    """Describe what is known before the model is built: version, files and device.

    Args:
        runner (GuardedRunner): The runner.
        log_file (str, optional): Where the log is.
    """
    processes = get_world_size()
    device = get_device() + (f', {processes} processes' if processes > 1 else '')
    rows = {
        'config': _short(runner.cfg.filename),
        'work folder': _short(runner.work_dir),
        'log': f'{_short(log_file)} (has the details; --verbose shows them here)',
        'device': device,
    }
    return _lay_out(f'xcit_mm {__version__}, PyTorch {torch.__version__}', rows)


def describe_work(runner: 'GuardedRunner') -> str:
    """Describe what is known before the first iteration: model, weights, data and schedule.

    Args:
        runner (GuardedRunner): The runner, with its loops built and its weights loaded.
    """
    rows = {'model': _model(runner), 'weights': _weights(runner), **dict(_data(runner))}
    rows['seed'] = str(runner.seed)
    if 'train' in runner.loops:
        rows['schedule'] = _schedule(runner)
    return _lay_out('Ready', rows)


def find_start(runner: 'GuardedRunner') -> str | None:
    """Return the checkpoint that a run starts or resumes from, if any."""
    latest = find_latest_checkpoint(runner.work_dir) if runner.cfg.get('resume') else None
    return runner.cfg.get('load_from') or latest


def _lay_out(title: str, rows: dict[str, str]) -> str:
    return '\n'.join([title, *(f'  {name:12}{value}' for name, value in rows.items())])


def _short(path: str | None) -> str:
    if path is None:
        return '-'
    inside = os.path.relpath(path)
    return path if inside.startswith('..') else inside


def _model(runner: 'GuardedRunner') -> str:
    model: Any = runner.model
    backbone = getattr(getattr(model, 'module', model), 'backbone', None)
    name = runner.model_name + (f' on {type(backbone).__name__}' if backbone is not None else '')
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    text = f'{name}, {total / 1e6:.1f} M parameters'
    return f'{text}, {frozen / 1e6:.1f} M of them frozen' if frozen else text


def _weights(runner: 'GuardedRunner') -> str:
    path = find_start(runner)
    if runner.cfg.get('resume') and runner.iter:
        return f'{_short(path)}, resumed after {runner.iter} iterations'
    if path:
        return path
    for node in nested_dicts(runner.cfg.get('model')):
        if node.get('type') == 'Pretrained' and 'checkpoint' in node:
            return f'{node["checkpoint"]} (part of the model; the rest is random)'
    return 'random'


def _data(runner: 'GuardedRunner') -> Iterator[tuple[str, str]]:
    shown = None
    for split, loop in runner.loops.items():
        dataset: Any = loop.dataloader.dataset
        classes = list(getattr(dataset, 'metainfo', {}).get('classes') or ())
        text = f'{len(dataset)} images'
        if classes and classes != shown:
            text += f', {len(classes)} classes: {join_some(classes, 12)}'
        shown = classes
        yield f'{split} data', text


def _schedule(runner: 'GuardedRunner') -> str:
    loader, processes = runner.train_dataloader, get_world_size()
    batch = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None)
    each = f' on each of {processes} processes' if processes > 1 else ''
    if runner.max_epochs > 1:
        length = f'{runner.max_epochs} epochs of {len(loader)} iterations'
    else:
        length = f'{runner.max_iters} iterations'
    groups = getattr(runner.optim_wrapper, 'param_groups', [])
    # Schedulers with a warm-up have already lowered `lr`.
    rates = [group.get('initial_lr', group['lr']) for group in groups]
    rate = f', learning rate {max(rates):.3g}' if rates else ''
    optimizer = type(getattr(runner.optim_wrapper, 'optimizer', None)).__name__
    return f'{length}, batch of {batch}{each}, {optimizer}{rate}'
