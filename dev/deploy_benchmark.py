"""``python -m dev.deploy_benchmark``: exported models next to PyTorch; tables of docs/deploy.md.

Takes the models of ``make demo``, which are trained first if they are missing.
"""

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine import registry
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import init_default_scope
from PIL import Image

import xcit_mm_runtime
from dev.measure import run_worker
from dev.pages import write_between_marks, write_numbers
from xcit_mm.demo.steps import MODELS, DemoModel, Step, read_metrics, run_step, steps
from xcit_mm.engine.config import load_config, scope_of
from xcit_mm.errors import UserError
from xcit_mm.tables import best_value, format_table, metric_digits
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.coco import record

Row = dict[str, Any]
# What is exported, and the options for it.
PRECISIONS = {
    'float32': [],
    'float16': ['--fp16'],
    'int8': ['--int8'],
    'int8, calibrated': ['--int8', '--calibration', 'IMAGES'],
}
# A model of a usual size with as many classes as Cityscapes, for speed alone: random weights.
LARGE = 'xcit_mm::segmentation/sem_fpn_xcit_s12_16_80k.py'
LARGE_OPTIONS = ['model.decode_head.num_classes=19', 'model.backbone.init_cfg=None']
LARGE_SIZE = (800, 1344)
# The metrics of float32 may differ by this from those of `xcit-mm test`.
TOLERANCE = 0.001
QUICK_ITERATIONS = 20  # fewer would leave none for the warm-up
TRAIN_IMAGES = {'mmdet': 'coco/train2017', 'mmseg': 'ade/images/training'}
# Columns of the table of costs, with their decimals.
COST_DIGITS = {'MB': 1, 'ms': 1, 'PyTorch / this': 2, 'float32 / this': 2, 'peak MB': 0}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.deploy_benchmark',
        description='Export the models of the demo in each precision. Measure accuracy on all '
        'validation images through xcit_mm_runtime, next to "xcit-mm test"; size, speed and '
        'memory, next to PyTorch. Writes the tables of docs/deploy.md and docs/deploy.json. Half '
        'an hour, most of it for exporting. Linux only.',
    )
    parser.add_argument('--demo', type=Path, default=Path('work_dirs/demo'),
                        help='the folder of the demo (default: %(default)s)')  # fmt: skip
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/deploy_benchmark'),
                        help='folder for exported files (default: %(default)s)')  # fmt: skip
    parser.add_argument('--page', type=Path, default=Path('docs/deploy.md'),
                        help='the page; JSON goes next to it (default: %(default)s)')  # fmt: skip
    parser.add_argument('--threads', type=int, default=2, help='of both runtimes (default: 2)')
    parser.add_argument('--quick', action='store_true',
                        help='a segmentor that was hardly trained, and no page')  # fmt: skip
    return parser.parse_args(argv)


def export_all(
    config: str, checkpoint: Path, name: str, folder: Path, *options: str
) -> dict[str, Path]:
    """Export a model in each precision, unless that is done, and return the files.

    Args:
        config (str): The config of the model.
        checkpoint (Path): Its weights.
        name (str): What its files are called.
        folder (Path): Where they go.
        *options (str): What changes in the config.
    """
    cfg = get_config(config)
    images = f'{cfg.shapes.root}/{TRAIN_IMAGES[cfg.default_scope]}' if 'shapes' in cfg else None
    files = {}
    for precision, given in PRECISIONS.items():
        if images is None and 'IMAGES' in given:
            continue
        files[precision] = folder / f'{name}_{precision.replace(", ", "_")}.onnx'
        command = ['export', config, str(checkpoint), '--out', str(files[precision]), '--force']
        command += [str(images) if option == 'IMAGES' else option for option in given]
        command += ['--cfg-options', *options] if options else []
        run_step(Step(f'export {name}, {precision}', command, files[precision], checkpoint), {})
    return files


def detection_metrics(model: xcit_mm_runtime.Model, cfg: Config) -> dict[str, float]:
    """Return COCO's mAP of boxes and masks on the validation set."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    root = Path(cfg.shapes.root) / 'coco'
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(root / 'annotations' / 'instances_val2017.json'))
        kinds = [{'id': i} for i in truth.getCatIds(catNms=model.classes)]
        found: list[Row] = []
        for number, image in truth.imgs.items():
            path, size = root / 'val2017' / image['file_name'], (image['height'], image['width'])
            found += record(cast(Any, model(path)), number, path, size, kinds)['annotations']
        result = dict.fromkeys(('coco/bbox_mAP', 'coco/segm_mAP'), 0.0)
        for kind in ('bbox', 'segm') if found else ():
            # As in mmdet: the sizes of masks are not those of their boxes.
            entries = [{k: v for k, v in a.items() if kind == 'bbox' or k != 'bbox'} for a in found]
            scores = COCOeval(truth, truth.loadRes(entries), kind)
            for step in (scores.evaluate, scores.accumulate, scores.summarize):
                step()
            result[f'coco/{kind}_mAP'] = float(scores.stats[0])
    return result


def segmentation_metrics(model: xcit_mm_runtime.Model, cfg: Config) -> dict[str, float]:
    """Return the mean IoU on the validation set, by mmseg's own computation."""
    from mmseg.evaluation import IoUMetric

    root, count, areas = Path(cfg.shapes.root) / 'ade', len(model.classes), []
    for path in sorted((root / 'annotations' / 'validation').glob('*.png')):
        truth = np.asarray(Image.open(path)) - np.uint8(1)  # 0 becomes 255, which is ignored
        labels = model(root / 'images' / 'validation' / f'{path.stem}.jpg').labels
        pair = torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(truth.astype(np.int64))
        areas.append(IoUMetric.intersect_and_union(*pair, count, 255))
    totals = (sum(part) for part in zip(*areas, strict=True))
    metrics = IoUMetric.total_area_to_metrics(*totals, ['mIoU'])
    return {'mIoU': 100 * float(np.nanmean(metrics['IoU']))}


def accuracy(job: DemoModel, files: dict[str, Path], metrics: Path, threads: int) -> list[Row]:
    """Evaluate each file of a model: one row each, after that of PyTorch.

    Args:
        job (DemoModel): The model.
        files (dict[str, Path]): Its files by precision.
        metrics (Path): What ``xcit-mm test`` wrote about the checkpoint.
        threads (int): Threads of ONNX Runtime.
    """
    cfg = get_config(job.config)
    evaluate = detection_metrics if cfg.default_scope == 'mmdet' else segmentation_metrics
    measured = {'PyTorch': read_metrics(metrics)}
    for precision, path in files.items():
        measured[precision] = evaluate(xcit_mm_runtime.load(path, threads), cfg)
        print(job.title, precision, measured[precision], flush=True)
    for key, name in job.headline.items():
        ours, theirs = measured['float32'][key], measured['PyTorch'][key]
        if abs(ours - theirs) > TOLERANCE * best_value(name):
            raise UserError(f'{name} in float32 is {ours}, in PyTorch {theirs}.')
    return [
        {
            'model': job.title,
            'runs with': runner,
            **{name: values[key] for key, name in job.headline.items()},
        }
        for runner, values in measured.items()
    ]


def costs(
    title: str, torch_runner: Row, files: dict[str, Path], repetitions: int, **job: Any
) -> tuple[list[Row], dict[str, float]]:
    """Measure size, speed and memory of PyTorch and of each file, and the shares of operators.

    Args:
        title (str): The model and the size of the image.
        torch_runner (dict): As for :func:`dev.deploy_worker.build_step`.
        files (dict[str, Path]): The files by precision.
        repetitions (int): How many times each is timed.
        **job: ``size``, ``image`` and ``threads``.
    """

    def measure(what: str, runners: Sequence[Row], repetitions: int = 1) -> dict[str, Any]:
        settings = dict(measure=what, runners=list(runners), repetitions=repetitions, **job)
        return run_worker('dev.deploy_worker', settings)

    runners = {'PyTorch': torch_runner, **{k: {'onnx': str(v)} for k, v in files.items()}}
    medians = measure('speed', list(runners.values()), repetitions)['medians']
    rows = []
    for (name, runner), seconds in zip(runners.items(), medians, strict=True):
        rows.append({
            'model': title,
            'runs with': name,
            # The checkpoint of a training also holds the state of the optimizer.
            'MB': files[name].stat().st_size / 1e6 if name in files else None,
            'ms': 1000 * seconds,
            'PyTorch / this': medians[0] / seconds,
            'float32 / this': medians[1] / seconds,
            'peak MB': measure('memory', [runner])['peak_MB'],
        })  # fmt: skip
    shares = measure('operators', [runners['float32']], -(-repetitions // 7))['shares']
    return rows, shares


def run_job(
    job: DemoModel, args: argparse.Namespace
) -> tuple[list[Row], list[Row], dict[str, float]]:
    """Return accuracy and costs of one model of the demo, and the shares of its operators."""
    train, test, _ = steps(job, args.demo, 0, QUICK_ITERATIONS if args.quick else None)
    for step in (train, test):
        run_step(step, {})
    files = export_all(job.config, train.result, job.name, args.out_dir)
    shapes = get_config(job.config).shapes
    image = min(Path(shapes.root, job.images.rpartition('/')[0]).iterdir())
    runner = {'config': job.config, 'checkpoint': str(train.result)}
    title, size = f'{job.title}, {shapes.size}x{shapes.size}', (shapes.size, shapes.size)
    return (
        accuracy(job, files, test.result, args.threads),
        *costs(title, runner, files, 31, size=size, image=str(image), threads=args.threads),
    )


def save_random_weights(cfg: Config, path: Path) -> Path:
    """Write a checkpoint of the config's model as built."""
    init_default_scope(scope_of(cfg))
    torch.manual_seed(0)
    torch.save({'state_dict': registry.MODELS.build(cfg.model).state_dict()}, path)
    return path


def run_large(args: argparse.Namespace) -> tuple[list[Row], dict[str, float]]:
    """Return costs of a larger model on a larger image, with random weights."""
    checkpoint = args.out_dir / 'large.pth'
    if not checkpoint.exists():
        args.out_dir.mkdir(parents=True, exist_ok=True)
        save_random_weights(load_config(LARGE, LARGE_OPTIONS), checkpoint)
    files = export_all(LARGE, checkpoint, 'large', args.out_dir, *LARGE_OPTIONS)
    runner = {'config': LARGE, 'checkpoint': str(checkpoint), 'options': LARGE_OPTIONS}
    title = 'Semantic FPN on XCiT-S12/16, {}x{}'.format(*LARGE_SIZE)
    return costs(title, runner, files, 5, size=LARGE_SIZE, image='', threads=args.threads)


def page_text(data: dict[str, Any]) -> str:
    """Return the tables, for the page."""
    parts = [format_table(changes(rows), 'markdown') for rows in data['accuracy']]
    parts.append(format_table([rounded(row) for row in data['costs']], 'markdown'))
    for title, shares in data['operators'].items():
        named = ', '.join(f'{name} {share:.0%}' for name, share in shares.items())
        parts.append(f'Where the time of float32 goes, {title}: {named}.')
    return '\n' + '\n\n'.join(parts) + '\n'


def changes(rows: list[Row]) -> list[Row]:
    """Return what each file adds to the scores of PyTorch, the first row, which are elsewhere."""
    first, *files = rows
    return [
        {
            'model': row['model'],
            'runs with': row['runs with'],
            **{f'change of {key}': change(key, row[key] - first[key]) for key in list(row)[2:]},
        }
        for row in files
    ]


def change(key: str, value: float) -> str:
    digits = metric_digits(key)
    return f'{round(value, digits) + 0.0:+.{digits}f}'


def rounded(row: Row) -> Row:
    """Return a row of costs as it is written."""
    text = {
        key: '' if row[key] is None else f'{row[key]:.{digits}f}'
        for key, digits in COST_DIGITS.items()
    }
    return {**row, **text}


def run_benchmark(args: argparse.Namespace) -> int:
    if not args.quick and not args.page.is_file():
        raise UserError(f'There is no page {args.page}; run this in the root of the repository.')
    data: dict[str, Any] = {'threads': args.threads, 'accuracy': [], 'costs': [], 'operators': {}}
    for job in MODELS[1:] if args.quick else MODELS:
        rows, spent, shares = run_job(job, args)
        data['accuracy'].append(rows)
        data['costs'] += spent
        data['operators'][spent[0]['model']] = shares
    if not args.quick:
        spent, shares = run_large(args)
        data['costs'] += spent
        data['operators'][spent[0]['model']] = shares
    text = page_text(data)
    print(text)
    write_numbers((args.out_dir if args.quick else args.page.parent) / 'deploy.json', data)
    if not args.quick:
        write_between_marks(args.page, {'precision': text})
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(run_benchmark, parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
