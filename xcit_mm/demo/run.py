"""Runs the demo and writes its page."""

import json
import os
import time
from pathlib import Path
from typing import Any

import mmcv
import mmdet
import mmengine
import mmseg
import torch
from mmengine.hub import get_config

from xcit_mm_runtime.files import write_atomically

from ..errors import UserError
from ..version import __version__
from .curves import plot_curves, read_curves
from .page import Section, render
from .pictures import draw_detections, draw_segmentations
from .steps import JOBS, Job, Step, read_metrics, run_step, steps

QUICK_ITERATIONS = 40
# The file of measurements, in the folder of the demo.
RECORD = 'demo.json'


def run_demo(out_dir: Path, seed: int, quick: bool) -> dict[str, float]:
    """Train and evaluate both models unless that is done, and write ``index.html``.

    Args:
        out_dir (Path): Folder of the demo.
        seed (int): Seed of the training.
        quick (bool): Whether to train too briefly for meaningful accuracy.

    Returns:
        dict[str, float]: The numbers at the top of the page.
    """
    path = out_dir / RECORD
    record = start_record(path, seed)
    sections: list[Section] = []
    numbers: dict[str, float] = {}
    for job in JOBS:
        planned = list(steps(job, out_dir, seed, QUICK_ITERATIONS if quick else None))
        for step in planned:
            run_step(step, record['seconds'])
            write_record(path, record)
        sections.append(_section(job, planned, out_dir))
        numbers |= dict(sections[-1].headline.values())
    record['metrics'] = numbers
    write_record(path, record)
    page = render(sections, _facts(record))
    write_atomically(out_dir / 'index.html', page)
    return numbers


def start_record(path: Path, seed: int) -> dict[str, Any]:
    """The record of an interrupted run, or a new one, which stores the seed at once."""
    if not path.exists():
        record = {'seed': seed, 'seconds': {}}
        write_record(path, record)
        return record
    record = json.loads(path.read_text(encoding='utf-8'))
    if record['seed'] != seed:
        raise UserError(
            f'{path.parent} was made with seed {record["seed"]}, not {seed}: use another --out-dir.'
        )
    return record


def write_record(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(record, indent=1))


def headline(job: Job, metrics: dict[str, float]) -> dict[str, tuple[str, float]]:
    """Name in the JSON -> display name and value, of the main metrics."""
    return {key: (name, metrics[key]) for key, name in job.headline.items()}


def _section(job: Job, planned: list[Step], out_dir: Path) -> Section:
    work_dir = out_dir / job.name
    metrics = read_metrics(work_dir / 'metrics.json')
    loss, values = read_curves(work_dir, list(job.headline))
    for name, curve in values.items():
        curve[max([*loss, *curve])] = metrics[
            name
        ]  # validation during training, the test at the end
    cfg = get_config(job.config)
    data_root = Path(cfg.shapes.root)
    predictions, folder = work_dir / 'predictions', out_dir / 'pictures' / job.name
    if cfg.default_scope == 'mmdet':
        pictures = draw_detections(data_root, predictions, folder)
    else:
        classes, palette = cfg.metainfo.classes, cfg.metainfo.palette
        pictures = draw_segmentations(data_root, predictions, folder, classes, palette)
    return Section(
        job.title,
        headline(job, metrics),
        metrics,
        plot_curves(loss, values, job.headline),
        pictures,
        [str(step) for step in planned],
    )


def _facts(record: dict[str, Any]) -> dict[str, str]:
    shapes = get_config(JOBS[0].config).shapes
    packages = {'mmengine': mmengine, 'mmcv': mmcv, 'mmdet': mmdet, 'mmseg': mmseg, 'torch': torch}
    facts = {
        'data': f'{shapes.train} images for training, {shapes.val} held out, made from seed '
        f'{shapes.seed} by xcit-mm shapes',
        'seed': str(record['seed']),
        'time': f'{sum(record["seconds"].values()) / 60:.1f} minutes on {os.cpu_count()} cores',
        'made': time.strftime('%Y-%m-%d'),
        'xcit_mm': __version__,
    }
    return facts | {name: package.__version__ for name, package in packages.items()}
