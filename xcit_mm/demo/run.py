"""Runs the demo and writes its page."""

import dataclasses
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
from mmengine.config import Config

from ..engine.checkpoint import write_atomically
from ..version import __version__
from .curves import plot_curves, read_curves
from .page import Section, render
from .pictures import draw_detections, draw_segmentations
from .steps import (
    JOBS,
    NEGATIVES,
    SEGMENTOR,
    WITHOUT_XCA,
    Job,
    Step,
    read_metrics,
    run_step,
    steps,
)

QUICK_ITERATIONS = 40
# What was measured, in the folder of the demo or of the control.
RECORD, CONTROL_RECORD = 'demo.json', 'control.json'


def run_demo(root: Path, out_dir: Path, seed: int, quick: bool) -> dict[str, float]:
    """Train and evaluate both models where that is not done yet, and write ``index.html``.

    Args:
        root (Path): The repository.
        out_dir (Path): Folder of the demo.
        seed (int): Seed of the trainings.
        quick (bool): Whether the trainings are so short that the numbers mean nothing.

    Returns:
        dict[str, float]: The numbers that the page puts first.
    """
    path = out_dir / RECORD
    record = _start_record(path, seed)
    sections: list[Section] = []
    numbers: dict[str, float] = {}
    for job in JOBS:
        planned = list(steps(job, root, out_dir, seed, QUICK_ITERATIONS if quick else None))
        for step in planned:
            run_step(step, root, record['seconds'])
            _write_record(path, record)
        sections.append(_section(job, planned, root, out_dir))
        numbers |= dict(sections[-1].headline.values())
    record['metrics'] = numbers
    _write_record(path, record)
    page = render(sections, _facts(root, record))
    write_atomically(out_dir / 'index.html', page.encode())
    return numbers


def run_control(root: Path, out_dir: Path, seed: int) -> dict[str, float]:
    """The demo's segmentor with and without XCA, on images half of which are negatives.

    Args:
        root (Path): The repository.
        out_dir (Path): Folder of the control.
        seed (int): Seed of the trainings.

    Returns:
        dict[str, float]: The mIoU of both.
    """
    path = out_dir / CONTROL_RECORD
    record = _start_record(path, seed)
    numbers: dict[str, float] = {}
    for name, options in (('with XCA', ()), ('without XCA', WITHOUT_XCA)):
        folder = out_dir / name.replace(' ', '_')
        train, evaluate, _ = steps(SEGMENTOR, root, folder, seed, options=(*NEGATIVES, *options))
        for step in (train, evaluate):
            step = dataclasses.replace(step, name=f'{step.name} {name}')
            run_step(step, root, record['seconds'])
            _write_record(path, record)
        metrics = read_metrics(folder / SEGMENTOR.name / 'metrics.json')
        numbers |= {f'{key} {name}': value for key, value in _headline(SEGMENTOR, metrics).values()}
    record['metrics'] = numbers
    _write_record(path, record)
    return numbers


def _start_record(path: Path, seed: int) -> dict[str, Any]:
    """The record of a run that goes on, or a new one, which keeps the seed from the start."""
    if not path.exists():
        record = {'seed': seed, 'seconds': {}}
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_record(path, record)
        return record
    record = json.loads(path.read_text(encoding='utf-8'))
    if record['seed'] != seed:
        raise FileExistsError(
            f'{path.parent} was made with seed {record["seed"]}, not {seed}: use another --out-dir.'
        )
    return record


def _write_record(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(record, indent=1).encode())


def _headline(job: Job, metrics: dict[str, float]) -> dict[str, tuple[str, float]]:
    """Name in the JSON -> name for people and value, of what comes first."""
    return {key: (name, metrics[key] / job.scale) for key, name in job.headline.items()}


def _section(job: Job, planned: list[Step], root: Path, out_dir: Path) -> Section:
    work_dir = out_dir / job.name
    metrics = read_metrics(work_dir / 'metrics.json')
    loss, values = read_curves(work_dir, list(job.headline))
    for name, curve in values.items():
        curve[max([*loss, *curve])] = metrics[name]  # validation on the way, the test at the end
    cfg = Config.fromfile(root / job.config)
    data_root = root / cfg.shapes.root
    predictions, folder = work_dir / 'predictions', out_dir / 'pictures' / job.name
    if cfg.default_scope == 'mmdet':
        pictures = draw_detections(data_root, predictions, folder)
    else:
        classes, palette = cfg.metainfo.classes, cfg.metainfo.palette
        pictures = draw_segmentations(data_root, predictions, folder, classes, palette)
    return Section(
        job.title,
        _headline(job, metrics),
        metrics,
        plot_curves(loss, values, job.headline, job.scale),
        pictures,
        [' '.join(['python', *step.command]) for step in planned],
    )


def _facts(root: Path, record: dict[str, Any]) -> dict[str, str]:
    shapes = Config.fromfile(root / JOBS[0].config).shapes
    packages = {'mmengine': mmengine, 'mmcv': mmcv, 'mmdet': mmdet, 'mmseg': mmseg, 'torch': torch}
    facts = {
        'data': f'{shapes.train} images for training, {shapes.val} held out, made from seed '
        f'{shapes.seed} by python -m xcit_mm.datasets',
        'seed': str(record['seed']),
        'time': f'{sum(record["seconds"].values()) / 60:.1f} minutes on {os.cpu_count()} cores',
        'made': time.strftime('%Y-%m-%d'),
        'xcit_mm': __version__,
    }
    return facts | {name: package.__version__ for name, package in packages.items()}
