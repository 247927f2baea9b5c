"""Measures how long a training takes, with a few of its own iterations."""

import itertools
import math
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from ..compat import revert_sync_bn
from .config import scope_of
from .runner import GuardedRunner, choose_device

# Steps that are measured: for a schedule, and for an estimate. After SECONDS, two are enough.
STEPS, QUICK_STEPS, SECONDS = 8, 2, 30.0


@dataclass
class Pace:
    """What a training takes.

    Args:
        iteration (float): Seconds per iteration, with loading the images.
        image (float): Seconds per image of a validation.
        memory (float, optional): Memory of the training at its peak, in gigabytes: that of the
            GPU, or on a CPU that of the process; None on Windows, which does not tell.
    """

    iteration: float
    image: float
    memory: float | None


def measure_pace(cfg: Config, steps: int = STEPS, objects: float | None = None) -> Pace:
    """Run a few iterations of a training and a validation, from random weights.

    Args:
        cfg (Config): The config; not changed.
        steps (int): The number of iterations. Defaults to :data:`STEPS`.
        objects (float, optional): For a two-stage detector, the mean number of objects per image.
            Random weights find as many as they may, and trained ones about as many as there are.
            Defaults to None, no limit but that of the config.
    """
    cfg = deepcopy(cfg)
    if objects is not None:
        cfg.model.test_cfg.rcnn.max_per_img = math.ceil(objects)
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(WARNING)  # mmengine logs a line for each parameter
    try:
        return _measure(cfg, steps)
    finally:
        logger.setLevel(level)


def _measure(cfg: Config, steps: int) -> Pace:
    init_default_scope(scope_of(cfg))
    revert_sync_bn(cfg)
    model = MODELS.build(cfg.model).to(choose_device(cfg))
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    with torch.enable_grad():
        model.train()
        step = _time(cfg.train_dataloader, lambda batch: model.train_step(batch, wrapper), steps)
    model.eval()
    images = cfg.val_dataloader.get('batch_size', 1)
    with torch.no_grad():
        image = _time(cfg.val_dataloader, model.val_step, steps) / images
    return Pace(step, image, _peak_memory())


def _peak_memory() -> float | None:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    try:
        import resource
    except ImportError:  # Windows
        return None
    # A Mac counts bytes, others kilobytes.
    unit = 1 if sys.platform == 'darwin' else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9


def _time(loader: dict[str, Any], run: Any, steps: int) -> float:
    """Return the mean seconds that a batch takes, without the first.

    The mean, not the median: images may differ in size. Next to a GPU, the workers of the loader
    prepare batches while others run; on a CPU, they take their time from the network.
    """
    settings = {**loader, 'num_workers': 0, 'persistent_workers': False}
    batches = GuardedRunner.build_dataloader(settings, seed=0)
    on_gpu, workers = torch.cuda.is_available(), loader.get('num_workers', 0)
    times: list[tuple[float, float]] = []
    begin = start = time.perf_counter()
    for batch in itertools.chain.from_iterable(itertools.repeat(batches)):
        loaded = time.perf_counter()
        run(batch)
        if on_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append((loaded - start, now - loaded))
        start = now
        if len(times) > steps or (len(times) > 2 and now - begin > SECONDS):
            break
    loading, running = (sum(part) / len(part) for part in zip(*times[1:], strict=True))
    return max(running, loading / workers) if on_gpu and workers else loading + running
