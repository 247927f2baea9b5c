"""Measures how long a training takes, with a few of its own iterations."""

import itertools
import resource
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from ..compat import revert_sync_bn
from .config import scope_of
from .runner import GuardedRunner, choose_device

# At least two steps and at most this many, unless they take longer.
STEPS, SECONDS = 8, 30.0


@dataclass
class Pace:
    """What a training takes.

    Args:
        iteration (float): Seconds per iteration, with loading the images.
        image (float): Seconds per image of a validation.
        memory (float): Memory of the training at its peak, in gigabytes: that of the GPU, or on a
            CPU that of the process.
    """

    iteration: float
    image: float
    memory: float


def measure_pace(cfg: Config) -> Pace:
    """Run a few iterations of a training and a validation, from random weights.

    Args:
        cfg (Config): The config; not changed.
    """
    cfg = deepcopy(cfg)
    init_default_scope(scope_of(cfg))
    revert_sync_bn(cfg)
    model = MODELS.build(cfg.model).to(choose_device(cfg))
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    with torch.enable_grad():
        model.train()
        step = _time(cfg.train_dataloader, lambda batch: model.train_step(batch, wrapper))
    model.eval()
    image = _time(cfg.val_dataloader, model.val_step) / cfg.val_dataloader.get('batch_size', 1)
    is_cuda = torch.cuda.is_available()
    # A Mac counts bytes, others kilobytes.
    unit = 1 if sys.platform == 'darwin' else 1024
    used = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = torch.cuda.max_memory_allocated() if is_cuda else used
    return Pace(step, image, peak / 1e9)


def _time(loader: dict[str, Any], run: Any) -> float:
    """Return the median seconds of loading and running a batch, without the first."""
    settings = {**loader, 'num_workers': 0, 'persistent_workers': False}
    batches = GuardedRunner.build_dataloader(settings, seed=0)
    times: list[float] = []
    start = time.perf_counter()
    for batch in itertools.chain.from_iterable(itertools.repeat(batches)):
        run(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(now - start)
        start = now
        if len(times) > STEPS or (len(times) > 2 and sum(times) > SECONDS):
            break
    return sorted(times[1:])[len(times[1:]) // 2]
