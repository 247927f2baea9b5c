"""The commands of the demo, run as a user would run them, each only if its result is missing."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config
from mmengine.hub import get_config

from xcit_mm_runtime.predict import results_path

from ..errors import UserError
from ..inference import TASKS, is_unfinished


@dataclass(frozen=True)
class DemoModel:
    """One model of the demo.

    Args:
        name (str): Name of its folder.
        title (str): Its display name.
        config (str): Its config.
        metrics (tuple[str]): The arguments of ``xcit-mm test --eval``.
        images (str): Which images of the dataset are drawn on the page, a glob.
        headline (dict): Metrics at the top of the page: name in the JSON -> display name.
    """

    name: str
    title: str
    config: str
    metrics: tuple[str, ...]
    images: str
    headline: dict[str, str]

    @property
    def is_detector(self) -> bool:
        """Return whether it finds objects, not classes of pixels."""
        return self.name == 'detector'


MODELS = (
    DemoModel(
        'detector',
        'Mask R-CNN on XCiT-N12/8',
        'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py',
        ('bbox', 'segm'),
        'coco/val2017/00000000000?.jpg',
        {'coco/bbox_mAP': 'box mAP', 'coco/segm_mAP': 'mask mAP'},
    ),
    DemoModel(
        'segmentor',
        'Semantic FPN on XCiT-N12/8',
        'xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py',
        ('mIoU',),
        'ade/images/validation/*0000000?.jpg',
        {'mIoU': 'mIoU'},
    ),
)


@dataclass
class Step:
    """A command, its result, and what that is made from.

    Args:
        name (str): What it does.
        command (list[str]): A command of ``xcit-mm`` and its arguments.
        result (Path): The file or folder that it makes.
        source (Path, optional): What that is made from. Defaults to None.
    """

    name: str
    command: list[str]
    result: Path
    source: Path | None = None

    def __str__(self) -> str:
        return ' '.join(['xcit-mm', *self.command])

    def is_done(self) -> bool:
        """Return whether the result exists, is finished, and is not older than its source."""
        if not self.result.exists() or is_unfinished(self.result.parent):
            return False
        return self.source is None or self.result.stat().st_mtime >= self.source.stat().st_mtime


def steps(
    model: DemoModel, out_dir: Path, seed: int, iterations: int | None = None
) -> Iterator[Step]:
    """Yield training, test and inference of one model.

    Args:
        model (DemoModel): The model.
        out_dir (Path): Folder of the demo.
        seed (int): Seed of the training.
        iterations (int, optional): Length of the training. Defaults to None, the config's.
    """
    cfg, name, work_dir = get_config(model.config), model.name, out_dir / model.name
    checkpoint = work_dir / f'iter_{iterations or cfg.train_cfg.max_iters}.pth'
    train = [model.config, '--work-dir', str(work_dir), '--seed', str(seed), '--resume']
    if iterations:
        train += ['--cfg-options', *shorten(cfg, iterations)]
    yield Step(f'train the {name}', ['train', *train], checkpoint)
    metrics = work_dir / 'metrics.json'
    test = [model.config, str(checkpoint), '--eval', *model.metrics, '--json', str(metrics)]
    test += ['--force', '--work-dir', str(work_dir / 'test')]
    yield Step(f'evaluate the {name}', ['test', *test], metrics, checkpoint)
    predictions = work_dir / 'predictions'
    infer = [f'{cfg.shapes.root}/{model.images}', '--config', model.config]
    infer += ['--checkpoint', str(checkpoint), '--out-dir', str(predictions), '--no-vis', '--force']
    infer += ['--ann-file', cfg.test_evaluator.ann_file] if model.is_detector else []
    results = results_path(TASKS[cfg.default_scope], predictions)
    yield Step(f'run inference with the {name}', ['infer', *infer], results, checkpoint)


def shorten(cfg: Config, iterations: int) -> list[str]:
    """Return ``--cfg-options`` that shorten a training and its schedule to so many iterations."""
    factor = iterations / cfg.train_cfg.max_iters
    options = [f'train_cfg.max_iters={iterations}', f'train_cfg.val_interval={iterations}']
    options += [f'default_hooks.checkpoint.interval={iterations // 2}']
    for i, scheduler in enumerate(cfg.param_scheduler):
        options += [
            f'param_scheduler.{i}.{key}={round(scheduler[key] * factor)}'
            for key in ('begin', 'end')
        ]
    return options


def run_step(step: Step, seconds: dict[str, float]) -> None:
    """Run a step unless it is done, and record how long it took.

    Args:
        step (Step): What to run.
        seconds (dict[str, float]): Time of each step, added to in place.
    """
    if step.is_done():
        print(f'[{step.name}] already done: {step.result}', flush=True)
        return
    print(f'[{step.name}] {step}', flush=True)
    start = time.monotonic()
    status = subprocess.run([sys.executable, '-m', 'xcit_mm_cli', *step.command]).returncode
    if status:
        raise UserError(f'{step} ended with status {status}. Rerun the demo to resume.')
    seconds[step.name] = seconds.get(step.name, 0.0) + time.monotonic() - start


def read_metrics(path: Path) -> dict[str, float]:
    """Return what ``xcit-mm test --json`` wrote, without classes that the images do not have."""
    content = json.loads(path.read_text(encoding='utf-8'))
    return {name: value for name, value in content.items() if value is not None}
