"""``python -m dev.deploy_benchmark``: exported models next to PyTorch; tables of docs/deploy.md.

Takes the models of ``make demo``, which are trained first if they are missing.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from PIL import Image

import xcit_mm_runtime
from dev.pages import write_between_marks
from xcit_mm.demo.steps import JOBS, Job, Step, read_metrics, run_step, steps
from xcit_mm.errors import UserError
from xcit_mm.tables import best_value, format_metric, format_table, metric_digits
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.coco import record
from xcit_mm_runtime.files import write_atomically

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
TRAIN_IMAGES = {'mmdet': 'coco/train2017', 'mmseg': 'ade/images/training'}


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
                        help='a segmentor after 4 iterations of training, and no page')  # fmt: skip
    return parser.parse_args(argv)


def export_all(config: str, checkpoint: Path, name: str, folder: Path, *options: str) -> dict:
    """The files of a model by precision; those that are there already are not made again."""
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
    """COCO's mAP of boxes and masks on the validation set."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    root = Path(cfg.shapes.root) / 'coco'
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(root / 'annotations' / 'instances_val2017.json'))
    kinds = [{'id': i} for i in truth.getCatIds(catNms=model.classes)]
    found: list[dict[str, Any]] = []
    for number, image in truth.imgs.items():
        path = root / 'val2017' / image['file_name']
        size = (image['height'], image['width'])
        found += record(cast(Any, model(path)), number, path, size, kinds)['annotations']
    result = {}
    for kind in ('bbox', 'segm'):
        # As in mmdet: the sizes of masks are not those of their boxes.
        entries = [{k: v for k, v in a.items() if kind == 'bbox' or k != 'bbox'} for a in found]
        with contextlib.redirect_stdout(io.StringIO()):
            scores = COCOeval(truth, truth.loadRes(entries), kind) if entries else None
            for step in (scores.evaluate, scores.accumulate, scores.summarize) if scores else ():
                step()
        result[f'coco/{kind}_mAP'] = float(scores.stats[0]) if scores else 0.0
    return result


def segmentation_metrics(model: xcit_mm_runtime.Model, cfg: Config) -> dict[str, float]:
    """Mean IoU on the validation set, by mmseg's own computation."""
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


def measure(measure: str, runners: list[dict], size: Sequence[int], args: Any, repetitions: int = 1,
            image: str = '') -> dict[str, Any]:  # fmt: skip
    """Run :mod:`dev.deploy_worker` in a process of its own."""
    job = {'measure': measure, 'runners': runners, 'size': list(size), 'image': image,
           'threads': args.threads, 'repetitions': repetitions}  # fmt: skip
    command = [sys.executable, '-m', 'dev.deploy_worker', json.dumps(job)]
    run = subprocess.run(command, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        if line.startswith('RESULT '):
            return json.loads(line.removeprefix('RESULT '))
    tail = '\n'.join(run.stderr.splitlines()[-5:])
    raise UserError(f'{json.dumps(job)} ended with status {run.returncode}:\n{tail}')


def costs(title: str, torch_runner: dict, files: dict, size: Sequence[int], args: Any,
          repetitions: int, image: str = '') -> list[dict[str, Any]]:  # fmt: skip
    """Size, speed and memory of PyTorch and of each file: one row each."""
    runners = {'PyTorch': torch_runner, **{k: {'onnx': str(v)} for k, v in files.items()}}
    medians = measure('speed', list(runners.values()), size, args, repetitions, image)['medians']
    rows = []
    for (name, runner), seconds in zip(runners.items(), medians, strict=True):
        peak = measure('memory', [runner], size, args, 1, image)['peak_MB']
        path = Path(runner.get('onnx') or runner['checkpoint'])
        rows.append({'model': title, 'runs with': name, 'MB': path.stat().st_size / 1e6,
                     'ms': 1000 * seconds, 'PyTorch / this': medians[0] / seconds,
                     'float32 / this': medians[1] / seconds, 'peak MB': peak})  # fmt: skip
    # The checkpoint of a training also holds the state of the optimizer.
    rows[0]['MB'] = None
    return rows


def run_job(job: Job, args: argparse.Namespace) -> tuple[list[dict], list[dict], dict]:
    """Accuracy and costs of one model of the demo, and the shares of its operators."""
    train, test, _ = steps(job, args.demo, 0, 4 if args.quick else None)
    for step in (train, test):
        run_step(step, {})
    files = export_all(job.config, train.result, job.name, args.out_dir)
    cfg = get_config(job.config)
    evaluate = detection_metrics if cfg.default_scope == 'mmdet' else segmentation_metrics
    expected = read_metrics(test.result)
    rows: list[dict[str, Any]] = [{'model': job.title, 'runs with': 'PyTorch'}]
    rows[0] |= {name: expected[key] for key, name in job.headline.items()}
    for precision, path in files.items():
        metrics = evaluate(xcit_mm_runtime.load(path, args.threads), cfg)
        row = {name: metrics[key] for key, name in job.headline.items()}
        rows.append({'model': job.title, 'runs with': precision, **row})
        print(rows[-1], flush=True)
    for name in job.headline.values():
        if abs(rows[1][name] - rows[0][name]) > TOLERANCE * best_value(name):
            raise UserError(f'{name} in float32 is {rows[1][name]}, in PyTorch {rows[0][name]}.')
    runner = {'config': job.config, 'checkpoint': str(train.result)}
    side = cfg.shapes.size
    image = str(sorted(Path(cfg.shapes.root, job.images.rpartition('/')[0]).iterdir())[0])
    spent = costs(f'{job.title}, {side}x{side}', runner, files, (side, side), args, 31, image)
    shares = measure('operators', [{'onnx': str(files['float32'])}], (side, side), args, 5, image)
    return rows, spent, shares['shares']


def run_large(args: argparse.Namespace) -> tuple[list[dict], dict]:
    """Costs of a larger model on a larger image, with random weights."""
    from mmengine.registry import MODELS, init_default_scope

    from xcit_mm.compat import revert_sync_bn
    from xcit_mm_cli.common import load_config

    checkpoint = args.out_dir / 'large.pth'
    if not checkpoint.exists():
        cfg = load_config(LARGE, LARGE_OPTIONS)
        init_default_scope(cfg.default_scope)
        revert_sync_bn(cfg)
        torch.manual_seed(0)
        model = MODELS.build(cfg.model)
        model.init_weights()
        args.out_dir.mkdir(parents=True, exist_ok=True)
        torch.save({'state_dict': model.state_dict(), 'meta': {}}, checkpoint)
    files = export_all(LARGE, checkpoint, 'large', args.out_dir, *LARGE_OPTIONS)
    runner = {'config': LARGE, 'checkpoint': str(checkpoint), 'options': LARGE_OPTIONS}
    title = 'Semantic FPN on XCiT-S12/16, {}x{}'.format(*LARGE_SIZE)
    shares = measure('operators', [{'onnx': str(files['float32'])}], LARGE_SIZE, args, 2)
    return costs(title, runner, files, LARGE_SIZE, args, 5), shares['shares']


def page_text(data: dict[str, Any]) -> str:
    """The tables, for the page."""
    parts = [format_table(changes(rows), 'markdown') for rows in data['accuracy']]
    parts.append(format_table(rounded(data['costs']), 'markdown'))
    for title, shares in data['operators'].items():
        named = ', '.join(f'{name} {share:.0%}' for name, share in shares.items())
        parts.append(f'Where the time of float32 goes, {title}: {named}.')
    return '\n' + '\n\n'.join(parts) + '\n'


def changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each file adds to the scores of PyTorch, in the first row; those are on another page."""
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


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Three digits for metrics, two decimals for ratios, one for the rest."""
    digits = {'MB': 1, 'ms': 1, 'peak MB': 0, 'PyTorch / this': 2, 'float32 / this': 2}

    def text(key: str, value: Any) -> Any:
        if value is None:
            return ''
        if not isinstance(value, float):
            return value
        return f'{value:.{digits[key]}f}' if key in digits else format_metric(key, value)

    return [{key: text(key, value) for key, value in row.items()} for row in rows]


def run_benchmark(args: argparse.Namespace) -> int:
    if not args.quick and not args.page.is_file():
        raise UserError(f'There is no page {args.page}; run this in the root of the repository.')
    data: dict[str, Any] = {'threads': args.threads, 'accuracy': [], 'costs': [], 'operators': {}}
    for job in JOBS[1:] if args.quick else JOBS:
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
    folder = args.out_dir if args.quick else args.page.parent
    write_atomically(folder / 'deploy.json', json.dumps(data, indent=1) + '\n')
    if not args.quick:
        write_between_marks(args.page, {'precision': text})
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    return explain_errors(run_benchmark, parse_args(argv))


if __name__ == '__main__':
    sys.exit(main())
