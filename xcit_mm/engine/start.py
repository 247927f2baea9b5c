"""Describes a run when it starts, in a few lines."""

import os
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
