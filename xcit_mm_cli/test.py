"""``xcit-mm test``: test a detector, a segmentor or a classifier."""

from __future__ import annotations

import argparse
import json
import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from .options import CHECKPOINT_HELP, add_allow_partial, add_config, add_flag, add_run_options

if TYPE_CHECKING:
    from logging import LogRecord

    from mmengine.config import Config
    from mmengine.runner import Runner

# task -> the evaluator that --eval configures, its setting, and its metrics
METRICS = {
    'mmdet': ('CocoMetric', 'metric', ('bbox', 'segm', 'proposal', 'proposal_fast')),
    'mmseg': ('IoUMetric', 'iou_metrics', ('mIoU', 'mDice', 'mFscore')),
    'xcit_mm': ('TopKAccuracy', 'names', ('top1', 'top5')),
}
# name of --eval -> parts of the names of its metrics, where they differ
METRIC_PARTS = {'mIoU': ('IoU', 'Acc'), 'mDice': ('Dice', 'Acc'), 'proposal_fast': ('AR@',)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Test a detector, a segmentor or a classifier. For several processes: tools/dist_test.sh.'
    )
    add_config(parser)
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument(
        '--eval',
        nargs='+',
        metavar='METRIC',
        help="metrics to compute instead of the config's: bbox segm proposal proposal_fast for "
        'detection, mIoU mDice mFscore for segmentation, top1 top5 for classification',
    )
    add_run_options(parser)
    parser.add_argument(
        '--out',
        help='write predictions: a folder of PNGs for segmentation, a .pkl file for all others',
    )
    parser.add_argument(
        '--json', metavar='FILE', help='write the metrics, also those of each class, to a JSON file'
    )
    add_flag(parser, '--force', 'overwrite --out and --json')
    add_flag(parser, '--show', 'show predictions in a window')
    parser.add_argument(
        '--show-dir',
        help='write a picture of each image to this folder: ground truth on the left, prediction '
        'on the right',
    )
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds between windows (default: 2)'
    )
    add_flag(parser, '--tta', 'test-time augmentation')
    add_allow_partial(parser)


def run(args: argparse.Namespace) -> int:
    from mmengine.dist import is_main_process

    from xcit_mm.datasets.present import check_datasets
    from xcit_mm.tables import format_table
    from xcit_mm_runtime.files import write_atomically

    from .common import build_runner, check_checkpoint, load_config, prepare_run

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
    prepare_run(cfg, args)
    runner = build_runner(cfg, args.config)
    if not args.verbose:
        hide_tables(runner)
    metrics = {name: value_or_none(value) for name, value in runner.test().items()}
    if not is_main_process():
        return 0
    print('\n' + format_table(select_rows(metrics, args.eval)))
    if note := describe_limit(runner):
        print(note)
    classes = class_rows(runner)
    if classes:
        table = format_table(classes)
        runner.logger.info('per class results:\n' + table)
        print('\n' + table)
    if args.json:
        of_classes = {f'{key}/{row["class"]}': row[key] for row in classes for key in list(row)[1:]}
        write_atomically(args.json, json.dumps(metrics | of_classes, indent=1) + '\n')
    outputs = {'metrics': args.json, 'predictions': args.out, 'pictures': args.show_dir}
    for what, path in outputs.items():
        if path:
            print(f'{what}: {path}')
    return 0


def set_metrics(cfg: Config, metrics: list[str]) -> None:
    """Set the metrics of the evaluator.

    Args:
        cfg (Config): The config, changed in place.
        metrics (list[str]): Names of :data:`METRICS`.
    """
    from xcit_mm.errors import UserError

    from .common import task_of

    task = task_of(cfg)
    evaluator_type, setting, known = METRICS[task]
    if task == 'mmdet' and not _has_key(cfg.model, 'mask'):
        known = tuple(name for name in known if name != 'segm')
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise UserError(f'--eval {" ".join(unknown)}: this model supports {", ".join(known)}.')
    find_evaluator(cfg, evaluator_type, '--eval')[setting] = list(metrics)


def find_evaluator(cfg: Config, kind: str, argument: str) -> dict[str, Any]:
    """Return the test evaluator of a type.

    Args:
        cfg (Config): The config.
        kind (str): Name of the type.
        argument (str): What needs it, for the error message.
    """
    from xcit_mm.configs import type_name
    from xcit_mm.errors import UserError

    for evaluator in _evaluators(cfg):
        if type_name(evaluator) == kind:
            return evaluator
    raise UserError(f'{argument} needs a test_evaluator of type {kind} in the config.')


def _evaluators(cfg: Config) -> list[dict[str, Any]]:
    """Return the test evaluators: a config has one, or a list of them."""
    return [cfg.test_evaluator] if isinstance(cfg.test_evaluator, dict) else cfg.test_evaluator


def _has_key(node: Any, part: str) -> bool:
    from xcit_mm.configs import nested_dicts

    return any(part in key for found in nested_dicts(node) for key in found)


def set_output(cfg: Config, args: argparse.Namespace) -> None:
    """Set where predictions and pictures go."""
    from xcit_mm.engine.comparison import ComparisonHook
    from xcit_mm.errors import UserError
    from xcit_mm_runtime.files import check_new

    from .common import check_output, task_of

    task = task_of(cfg)
    check_output(args.json, args.force)
    if args.show or args.show_dir:
        if task == 'xcit_mm':
            raise UserError(
                '--show and --show-dir draw boxes, masks and labels; this model has none.'
            )
        cfg.default_hooks.visualization = dict(
            type=ComparisonHook.__name__,
            out_dir=args.show_dir,
            show=args.show,
            wait_time=args.wait_time,
        )
    if args.out is None:
        return
    check_new(args.out, args.force)
    if task == 'mmseg':
        evaluator = find_evaluator(cfg, 'IoUMetric', '--out')
        evaluator.update(output_dir=args.out, keep_results=True)
        return
    if not args.out.endswith(('.pkl', '.pickle')):
        raise UserError(f'--out must end in .pkl for detection and classification, not {args.out}.')
    kind = 'DumpDetResults' if task == 'mmdet' else 'DumpResults'
    cfg.test_evaluator = [*_evaluators(cfg), dict(type=kind, out_file_path=args.out)]


def set_tta(cfg: Config) -> None:
    """Wrap the model for test-time augmentation; flip if the config has no settings for it."""
    from mmengine.config import ConfigDict

    from xcit_mm.configs import innermost_datasets
    from xcit_mm.errors import UserError

    from .common import dense_task_of

    datasets = list(innermost_datasets(cfg.test_dataloader))
    if dense_task_of(cfg, '--tta') == 'mmdet':
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


def hide_tables(runner: Runner) -> None:
    """Leave mmdet's and mmseg's tables of classes to the log file: the last table has them all."""
    from xcit_mm.engine.console import console_handlers

    def is_not_table(record: LogRecord) -> bool:
        return not str(record.msg).startswith(('\n+-', 'per class results'))

    for handler in console_handlers(runner.logger):
        handler.addFilter(is_not_table)


def value_or_none(value: float) -> float | None:
    """Return a metric; None if there are no objects for it: COCO has -1 then, mmseg NaN."""
    return None if math.isnan(value) or value == -1 else float(value)


def select_rows(metrics: dict[str, float | None], wanted: list[str] | None) -> list[dict[str, Any]]:
    """Return the rows of the table of metrics.

    Args:
        metrics (dict[str, float]): All metrics.
        wanted (list[str], optional): The arguments of ``--eval``.
    """
    rows: list[dict[str, Any]] = [
        {'metric': name, 'value': value} for name, value in metrics.items()
    ]
    parts = [part for name in wanted or () for part in METRIC_PARTS.get(name, (name,))]
    return [row for row in rows if any(part in row['metric'] for part in parts)] or rows


def describe_limit(runner: Runner) -> str:
    """Say how many detections the metrics of detection count; empty for other metrics."""
    for metric in runner.test_loop.evaluator.metrics:
        # Only our metric has such a limit.
        if hasattr(metric, 'max_dets') and {'bbox', 'segm'} & set(metric.metrics):
            why = ', the most objects in an image' if metric.max_dets > 100 else ', as in COCO'
            return f'AP counts at most {metric.max_dets} detections per image and class{why}.'
    return ''


def class_rows(runner: Runner) -> list[dict[str, Any]]:
    """Return the rows of the table of classes: the metrics of each, None without objects."""
    rows: dict[str, dict[str, Any]] = {}
    for metric in runner.test_loop.evaluator.metrics:
        prefix = f'{metric.prefix}/' if metric.prefix else ''
        for name, values in getattr(metric, 'per_class', {}).items():
            row = rows.setdefault(name, {'class': name})
            for key, value in values.items():
                row[prefix + key] = value_or_none(value)
    return [row for row in rows.values() if len(row) > 1]
