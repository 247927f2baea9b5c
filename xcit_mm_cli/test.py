"""Test a detector, a segmentor or a classifier."""

import argparse
import json
import math
from copy import deepcopy
from logging import LogRecord
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process
from mmengine.runner import Runner

from xcit_mm.configs import innermost_datasets, nested_dicts, type_name
from xcit_mm.datasets.present import check_datasets
from xcit_mm.engine.console import console_handlers
from xcit_mm.errors import UserError
from xcit_mm.tables import format_table
from xcit_mm_runtime.files import check_writable, write_atomically

from .common import (
    build_runner,
    check_checkpoint,
    command,
    load_config,
    prepare,
    task_of,
)

# task -> the evaluator that --eval configures, its setting, and its metrics
METRICS = {
    'mmdet': ('CocoMetric', 'metric', ('bbox', 'segm', 'proposal', 'proposal_fast')),
    'mmseg': ('IoUMetric', 'iou_metrics', ('mIoU', 'mDice', 'mFscore')),
    'xcit_mm': ('TopKAccuracy', 'names', ('top1', 'top5')),
}


def set_metrics(cfg: Config, metrics: list[str]) -> None:
    """Set the metrics of the evaluator.

    Args:
        cfg (Config): The config, changed in place.
        metrics (list[str]): Names of :data:`METRICS`.
    """
    task = task_of(cfg)
    evaluator_type, setting, known = METRICS[task]
    if task == 'mmdet' and not _has_key(cfg.model, 'mask'):
        known = tuple(name for name in known if name != 'segm')
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise UserError(f'--eval {" ".join(unknown)}: this model supports {", ".join(known)}.')
    evaluator = find_evaluator(cfg, evaluator_type, '--eval')
    evaluator[setting] = list(metrics)


def find_evaluator(cfg: Config, kind: str, argument: str) -> dict[str, Any]:
    """The test evaluator of a type.

    Args:
        cfg (Config): The config.
        kind (str): Name of the type.
        argument (str): What needs it, for the error message.
    """
    for evaluator in _evaluators(cfg):
        if type_name(evaluator) == kind:
            return evaluator
    raise UserError(f'{argument} needs a test_evaluator of type {kind} in the config.')


def _evaluators(cfg: Config) -> list[dict[str, Any]]:
    """The test evaluators: a config has one, or a list of them."""
    return [cfg.test_evaluator] if isinstance(cfg.test_evaluator, dict) else cfg.test_evaluator


def _has_key(node: Any, part: str) -> bool:
    return any(part in key for found in nested_dicts(node) for key in found)


def set_output(cfg: Config, args: argparse.Namespace) -> None:
    """Set where predictions and pictures go."""
    for path in (args.json, args.out):
        if path and Path(path).exists() and not args.force:
            raise UserError(f'{path} already exists; --force overwrites it.')
    if args.json:
        check_writable(args.json)
    task = task_of(cfg)
    if task == 'xcit_mm' and (args.show or args.show_dir):
        raise UserError('--show and --show-dir draw boxes, masks and labels; this model has none.')
    if args.show or args.show_dir:
        from xcit_mm.engine.comparison import ComparisonHook

        cfg.default_hooks.visualization = dict(
            type=ComparisonHook.__name__,
            out_dir=args.show_dir,
            show=args.show,
            wait_time=args.wait_time,
        )
    if args.out is None:
        return
    if task == 'mmseg':
        evaluator = find_evaluator(cfg, 'IoUMetric', '--out')
        evaluator.update(output_dir=args.out, keep_results=True)
    else:
        if not args.out.endswith(('.pkl', '.pickle')):
            raise UserError(
                f'--out must end in .pkl for detection and classification, not {args.out}.'
            )
        kind = 'DumpDetResults' if task == 'mmdet' else 'DumpResults'
        dump = dict(type=kind, out_file_path=args.out)
        cfg.test_evaluator = [*_evaluators(cfg), dump]


def set_tta(cfg: Config) -> None:
    """Wrap the model for test-time augmentation; flip if the config has no settings for it."""
    datasets = list(innermost_datasets(cfg.test_dataloader))
    if task_of(cfg) == 'xcit_mm':
        raise UserError('--tta is for detectors and segmentors.')
    if task_of(cfg) == 'mmdet':
        if _has_key(cfg.model, 'mask_head'):
            raise UserError(
                '--tta: mmdet merges boxes only, not masks. Leave it out, or test a config without '
                'a mask head.'
            )
        last = cfg.model.get('test_cfg') or {}
        limit = last.get('rcnn', last).get('max_per_img', 100)
        nms = dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=limit)
        cfg.setdefault('tta_model', dict(type='DetTTAModel', tta_cfg=nms))
        if 'tta_pipeline' not in cfg:
            *pipeline, pack = deepcopy(list(datasets[0].pipeline))
            keys = (*pack.get('meta_keys', ()), 'flip', 'flip_direction')
            # The result has the ground truth of the first: that must not be flipped.
            flips = [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]
            augment = [flips, [dict(pack, meta_keys=keys)]]
            cfg.tta_pipeline = [*pipeline, dict(type='TestTimeAug', transforms=augment)]
    for dataset in datasets:
        dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def select(metrics: dict[str, float], wanted: list[str] | None) -> list[dict[str, Any]]:
    """Rows of the final table: the requested metrics."""
    rows: list[dict[str, Any]] = [
        {'metric': name, 'value': value_or_none(value)} for name, value in metrics.items()
    ]
    if not wanted:
        return rows
    keys: dict[str, tuple[str, ...]] = {
        'mIoU': ('IoU', 'Acc'),
        'mDice': ('Dice', 'Acc'),
        'proposal_fast': ('AR@',),
    }
    parts = [part for name in wanted for part in keys.get(name, (name,))]
    chosen = [row for row in rows if any(part in row['metric'] for part in parts)]
    return chosen or rows


def value_or_none(value: float) -> float | None:
    """A metric; None if there are no objects for it, for which COCO has -1 and mmseg NaN."""
    return None if math.isnan(value) or value == -1 else float(value)


def count_note(runner: Runner) -> str:
    """What limits the detections that the metrics of detection count, in a sentence."""
    for metric in runner.test_loop.evaluator.metrics:
        # Only our metric has such a limit.
        if hasattr(metric, 'max_dets') and {'bbox', 'segm'} & set(metric.metrics):
            why = ', the most objects in an image' if metric.max_dets > 100 else ', as in COCO'
            return f'AP counts at most {metric.max_dets} detections per image and class{why}.'
    return ''


def class_rows(runner: Runner) -> list[dict[str, Any]]:
    """Rows of the table of classes: the metrics of each; None for a class without objects."""
    rows: dict[str, dict[str, Any]] = {}
    for metric in runner.test_loop.evaluator.metrics:
        prefix = f'{metric.prefix}/' if metric.prefix else ''
        for name, values in getattr(metric, 'per_class', {}).items():
            row = rows.setdefault(name, {'class': name})
            for key, value in values.items():
                row[prefix + key] = value_or_none(value)
    return [row for row in rows.values() if len(row) > 1]


def hide_tables(runner: Runner) -> None:
    """Leave mmdet's and mmseg's tables of classes to the log file: the last table has them all."""

    def is_no_table(record: LogRecord) -> bool:
        return not str(record.msg).startswith(('\n+-', 'per class results'))

    for handler in console_handlers(runner.logger):
        handler.addFilter(is_no_table)


def write_json(path: str, metrics: dict[str, float], classes: list[dict[str, Any]]) -> None:
    """Write the metrics, and those of each class as ``METRIC/CLASS``."""
    content = {name: value_or_none(value) for name, value in metrics.items()}
    for row in classes:
        content |= {f'{key}/{row["class"]}': row[key] for key in row if key != 'class'}
    write_atomically(path, json.dumps(content, indent=1) + '\n')


@command('test')
def main(args: argparse.Namespace) -> int:
    cfg = load_config(args.config, args.cfg_options)
    if args.eval:
        set_metrics(cfg, args.eval)
    set_output(cfg, args)
    if args.tta:
        set_tta(cfg)
    check_checkpoint(args.checkpoint)
    check_datasets(cfg, ('test_dataloader',))
    cfg.load_from = args.checkpoint
    if not args.allow_partial:
        hooks = cfg.get('custom_hooks') or []
        cfg.custom_hooks = [*hooks, dict(type='CompleteWeightsHook')]
    prepare(cfg, args)
    runner = build_runner(cfg, args.config)
    if not args.verbose:
        hide_tables(runner)
    metrics = runner.test()
    if not is_main_process():
        return 0
    print('\n' + format_table(select(metrics, args.eval)))
    if note := count_note(runner):
        print(note)
    classes = class_rows(runner)
    if classes:
        table = format_table(classes)
        runner.logger.info('per class results:\n' + table)
        print('\n' + table)
    if args.json:
        write_json(args.json, metrics, classes)
    for what, path in (
        ('metrics', args.json),
        ('predictions', args.out),
        ('pictures', args.show_dir),
    ):
        if path:
            print(f'{what}: {path}')
    return 0
