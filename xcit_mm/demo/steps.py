"""The commands of the demo, run as a user would run them, each only if its result is not there."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config


@dataclass(frozen=True)
class Job:
    """One model of the demo.

    Args:
        name (str): Name of its folder.
        title (str): What people call it.
        config (str): Path of its config in the repository.
        metrics (tuple[str]): What ``tools/test.py --eval`` is given.
        images (str): Which images of the data set are drawn on the page, a glob.
        headline (dict): Metrics that the page puts first: name in the JSON -> name for people.
        scale (float): What the metrics are divided by to be fractions.
    """

    name: str
    title: str
    config: str
    metrics: tuple[str, ...]
    images: str
    headline: dict[str, str]
    scale: float = 1.0


DETECTOR = Job(
    'detector',
    'Mask R-CNN on XCiT-N12/8',
    'configs/detection/mask_rcnn_xcit_n12_8_shapes.py',
    ('bbox', 'segm'),
    'coco/val2017/00000000000?.jpg',
    {'coco/bbox_mAP': 'box mAP', 'coco/segm_mAP': 'mask mAP'},
)
SEGMENTOR = Job(
    'segmentor',
    'Semantic FPN on XCiT-N12/8',
    'configs/segmentation/sem_fpn_xcit_n12_8_shapes.py',
    ('mIoU',),
    'ade/images/validation/*0000000?.jpg',
    {'mIoU': 'mIoU'},
    scale=100.0,
)
JOBS = (DETECTOR, SEGMENTOR)


@dataclass
class Step:
    """A command, what it makes, and what that is made from."""

    name: str
    command: list[str]
    result: Path
    source: Path | None = None

    def is_done(self) -> bool:
        """Whether the result is there and not older than its source."""
        if not self.result.exists():
            return False
        return self.source is None or self.result.stat().st_mtime >= self.source.stat().st_mtime


# Options of tools/train.py and test.py that take the attention out of the backbone.
WITHOUT_XCA = (
    'model.backbone.type=XCiTWithoutXCA',
    'custom_imports.imports=[xcit_mm,xcit_mm.demo.ablation]',
)
# Half of the images are negatives: what is ground shows only in the image as a whole.
NEGATIVES = (
    'shapes.root=data/shapes_negatives',
    'shapes.negatives=0.5',
    *(
        f'{split}_dataloader.dataset.data_root=data/shapes_negatives/ade'
        for split in ('train', 'val', 'test')
    ),
)


def steps(
    job: Job,
    root: Path,
    out_dir: Path,
    seed: int,
    iterations: int | None = None,
    options: Sequence[str] = (),
) -> Iterator[Step]:
    """Training, test and inference of one model.

    Args:
        job (Job): The model.
        root (Path): The repository.
        out_dir (Path): Folder of the demo.
        seed (int): Seed of the training.
        iterations (int, optional): Length of the training. Defaults to None, the config's.
        options (Sequence[str]): More ``--cfg-options`` of training and test. Defaults to none.
    """
    cfg = Config.fromfile(root / job.config)
    last = iterations or cfg.train_cfg.max_iters
    work_dir = out_dir / job.name
    checkpoint = work_dir / f'iter_{last}.pth'
    train = [job.config, '--work-dir', str(work_dir), '--seed', str(seed), '--resume']
    train_options = [*(shorten(cfg, iterations) if iterations else []), *options]
    if train_options:
        train += ['--cfg-options', *train_options]
    yield Step(f'train the {job.name}', ['tools/train.py', *train], checkpoint)
    metrics = work_dir / 'metrics.json'
    test = [job.config, str(checkpoint), '--eval', *job.metrics, '--json', str(metrics), '--force']
    test += ['--work-dir', str(work_dir / 'test')]
    if options:
        test += ['--cfg-options', *options]
    yield Step(f'evaluate the {job.name}', ['tools/test.py', *test], metrics, checkpoint)
    predictions = work_dir / 'predictions'
    infer = [f'{cfg.shapes.root}/{job.images}', '--config', job.config]
    infer += ['--checkpoint', str(checkpoint), '--out-dir', str(predictions), '--no-vis', '--force']
    yield Step(f'look with the {job.name}', ['tools/infer.py', *infer], predictions, checkpoint)


def shorten(cfg: Config, iterations: int) -> list[str]:
    """``--cfg-options`` that make a training this short, with its schedule."""
    factor = iterations / cfg.train_cfg.max_iters
    options = [f'train_cfg.max_iters={iterations}', f'train_cfg.val_interval={iterations}']
    options += [f'default_hooks.checkpoint.interval={iterations // 2}']
    for i, scheduler in enumerate(cfg.param_scheduler):
        options += [
            f'param_scheduler.{i}.{key}={round(scheduler[key] * factor)}'
            for key in ('begin', 'end')
        ]
    return options


def run_step(step: Step, root: Path, seconds: dict[str, float]) -> None:
    """Run a step unless it is done, and note how long it took.

    Args:
        step (Step): What to run.
        root (Path): The repository, in which it is run.
        seconds (dict[str, float]): Time of each step, added to in place.
    """
    text = ' '.join(['python', *step.command])
    if step.is_done():
        print(f'[{step.name}] is done already: {step.result}', flush=True)
        return
    print(f'[{step.name}] {text}', flush=True)
    start = time.monotonic()
    status = subprocess.run([sys.executable, *step.command], cwd=root).returncode
    if status:
        raise RuntimeError(
            f'{text} ended with status {status}; run the same command again to go on.'
        )
    seconds[step.name] = seconds.get(step.name, 0.0) + time.monotonic() - start


def read_metrics(path: Path) -> dict[str, float]:
    """What ``tools/test.py --json`` wrote."""
    return json.loads(path.read_text(encoding='utf-8'))
