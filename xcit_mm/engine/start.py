"""What a person wants to know when a run starts."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.runner import Runner, find_latest_checkpoint
from mmengine.runner.base_loop import BaseLoop

from ..configs import nested_dicts
from ..version import __version__

MAX_NAMES = 12


def describe_run(runner: Runner, log_file: str | None) -> str:
    """What is known before the model is built: version, files, device and seed.

    Args:
        runner (Runner): The runner.
        log_file (str, optional): Where the log is.
    """
    processes = get_world_size()
    device = get_device() + (f', {processes} processes' if processes > 1 else '')
    rows = {
        'config': _short(runner.cfg.filename),
        'work folder': _short(runner.work_dir),
        'log': f'{_short(log_file)} (has the details; --verbose shows them here)',
        'device': device,
        'seed': runner.seed,
    }
    return _lay_out(f'xcit_mm {__version__}, PyTorch {torch.__version__}', rows)


def describe_work(runner: Runner) -> str:
    """What is known before the first iteration: model, weights, data and schedule.

    Args:
        runner (Runner): The runner, with its loops built and its weights loaded.
    """
    rows = {'model': _model(runner), 'weights': _weights(runner), **dict(_data(runner))}
    if isinstance(runner._train_loop, BaseLoop):
        rows['schedule'] = _schedule(runner)
    return _lay_out('Ready', rows)


def _lay_out(title: str, rows: dict[str, Any]) -> str:
    return '\n'.join([title, *(f'  {name:12}{value}' for name, value in rows.items())])


def _short(path: str | None) -> str:
    if path is None:
        return '-'
    inside = os.path.relpath(path)
    return path if inside.startswith('..') else inside


def _model(runner: Runner) -> str:
    model: Any = runner.model
    backbone = getattr(getattr(model, 'module', model), 'backbone', None)
    name = runner.model_name + (f' on {type(backbone).__name__}' if backbone is not None else '')
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    text = f'{name}, {total / 1e6:.1f} M parameters'
    return f'{text}, {frozen / 1e6:.1f} M of them frozen' if frozen else text


def _weights(runner: Runner) -> str:
    if runner._resume and runner.iter:
        path = runner._load_from or find_latest_checkpoint(runner.work_dir)
        return f'{_short(path)}, resumed after {runner.iter} iterations'
    if runner._load_from:
        return str(runner._load_from)
    for node in nested_dicts(runner.cfg.get('model')):
        if node.get('type') == 'Pretrained' and 'checkpoint' in node:
            return f'{node["checkpoint"]} (part of the model; the rest is random)'
    return 'random'


def _data(runner: Runner) -> Iterator[tuple[str, str]]:
    shown = None
    for split in ('train', 'val', 'test'):
        loop = getattr(runner, f'_{split}_loop')
        if not isinstance(loop, BaseLoop):
            continue
        dataset = loop.dataloader.dataset
        classes = list(getattr(dataset, 'metainfo', {}).get('classes') or ())
        text = f'{len(dataset)} images'
        if classes and classes != shown:
            names = ', '.join(map(str, classes[:MAX_NAMES]))
            more = f' and {len(classes) - MAX_NAMES} more' if len(classes) > MAX_NAMES else ''
            text += f', {len(classes)} classes: {names}{more}'
        shown = classes
        yield f'{split} data', text


def _schedule(runner: Runner) -> str:
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
