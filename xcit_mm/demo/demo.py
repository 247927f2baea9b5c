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
from .page import Section, plot_curves, read_curves, render
from .pictures import draw_detections, draw_segmentations
from .steps import MODELS, DemoModel, Step, read_metrics, run_step, steps

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
    record: dict[str, Any] = {'seed': seed, 'seconds': {}}
    if path.exists():
        record = json.loads(path.read_text(encoding='utf-8'))
    if record['seed'] != seed:
        raise UserError(
            f'{out_dir} was made with seed {record["seed"]}, not {seed}: use another --out-dir.'
        )
    write_atomically(path, json.dumps(record, indent=1))
    sections = []
    for model in MODELS:
        planned = list(steps(model, out_dir, seed, QUICK_ITERATIONS if quick else None))
        for step in planned:
            run_step(step, record['seconds'])
            write_atomically(path, json.dumps(record, indent=1))
        sections.append(_section(model, planned, out_dir))
    record['metrics'] = dict(item for section in sections for item in section.headline.values())
    write_atomically(path, json.dumps(record, indent=1))
    write_atomically(out_dir / 'index.html', render(sections, _facts(record)))
    return record['metrics']


def _section(model: DemoModel, planned: list[Step], out_dir: Path) -> Section:
    work_dir = out_dir / model.name
    metrics = read_metrics(work_dir / 'metrics.json')
    loss, values = read_curves(work_dir, list(model.headline))
    for name, curve in values.items():
        # Validation during training, the test at the end.
        curve[max([*loss, *curve])] = metrics[name]
    draw = draw_detections if model.is_detector else draw_segmentations
    return Section(
        model.title,
        {key: (name, metrics[key]) for key, name in model.headline.items()},
        metrics,
        plot_curves(loss, values, model.headline),
        draw(get_config(model.config), work_dir / 'predictions', out_dir / 'pictures' / model.name),
        [str(step) for step in planned],
    )


def _facts(record: dict[str, Any]) -> dict[str, str]:
    shapes = get_config(MODELS[0].config).shapes
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
