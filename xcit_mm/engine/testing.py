"""Tests of a model: what the command line changes in a config, and the tables at the end."""

import math
from collections.abc import Collection
from copy import deepcopy
from logging import LogRecord
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner

from ..configs import SLIDING, innermost_datasets, nested_dicts, type_name
from ..errors import UserError
from ..paper import paper_tests_of
from .comparison import ComparisonHook
from .config import dense_scope_of, scope_of
from .console import console_handlers

# scope -> the evaluator whose metrics can be chosen, its setting, and its metrics
METRICS = {
    'mmdet': ('CocoMetric', 'metric', ('bbox', 'segm', 'proposal', 'proposal_fast')),
    'mmseg': ('IoUMetric', 'iou_metrics', ('mIoU', 'mDice', 'mFscore')),
    'xcit_mm': ('TopKAccuracy', 'names', ('top1', 'top5')),
}
# name of a metric -> parts of the names of its results, where they differ
METRIC_PARTS = {'mIoU': ('IoU', 'Acc'), 'mDice': ('Dice', 'Acc'), 'proposal_fast': ('AR@',)}


def set_metrics(cfg: Config, metrics: list[str]) -> None:
    """Set the metrics of the evaluator, as ``--eval`` does.

    Args:
        cfg (Config): The config, changed in place.
        metrics (list[str]): Names of :data:`METRICS`.
    """
    scope = scope_of(cfg)
    evaluator_type, setting, known = METRICS[scope]
    if scope == 'mmdet' and not _has_key(cfg.model, 'mask'):
        known = tuple(name for name in known if name != 'segm')
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise UserError(f'--eval {" ".join(unknown)}: this model supports {", ".join(known)}.')
    _find_evaluator(cfg, evaluator_type, '--eval')[setting] = list(metrics)


def set_predictions(cfg: Config, out: str) -> None:
    """Write predictions, as ``--out`` does.

    Args:
        cfg (Config): The config, changed in place.
        out (str): A folder for label PNGs of a segmentor, a pickle file for all others.
    """
    scope = scope_of(cfg)
    if scope == 'mmseg':
        evaluator = _find_evaluator(cfg, 'IoUMetric', '--out')
        evaluator.update(output_dir=out, keep_results=True)
        return
    if not out.endswith(('.pkl', '.pickle')):
        raise UserError(f'--out must end in .pkl for detection and classification, not {out}.')
    kind = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
    cfg.test_evaluator = [*_evaluators(cfg), dict(type=kind, out_file_path=out)]


def set_pictures(cfg: Config, **settings: Any) -> None:
    """Draw the ground truth next to the prediction, as ``--show`` and ``--show-dir`` do.

    Args:
        cfg (Config): The config, changed in place.
        **settings: Arguments of :class:`.ComparisonHook`.
    """
    if scope_of(cfg) == 'xcit_mm':
        raise UserError('--show and --show-dir draw boxes, masks and labels; this model has none.')
    cfg.default_hooks.visualization = dict(type=ComparisonHook.__name__, **settings)


def set_tta(cfg: Config) -> None:
    """Wrap the model for test-time augmentation; flip if the config has no settings for it."""
    datasets = list(innermost_datasets(cfg.test_dataloader))
    if dense_scope_of(cfg, '--tta') == 'mmdet':
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


def set_windows(cfg: Config, size: int, overlap: int) -> None:
    """Let a model see images in sliding windows, as ``--window`` and ``--overlap`` do.

    Args:
        cfg (Config): The config, changed in place.
        size (int): Side of the windows, in pixels of the image as the test pipeline gives it.
        overlap (int): What neighbors have in common.
    """
    cfg.model.setdefault('test_cfg', {})
    if dense_scope_of(cfg, '--window') == 'mmseg':
        stride = size - overlap
        slide = dict(mode='slide', crop_size=(size, size), stride=(stride, stride))
        cfg.model.test_cfg.update(slide)
        return
    from ..models.sliding_windows import DETECTORS

    name = type_name(cfg.model).removeprefix(SLIDING)
    if name not in DETECTORS:
        raise UserError(f'--window: {name} has no windows; {", ".join(DETECTORS)} have.')
    cfg.model.type = SLIDING + name
    cfg.model.test_cfg.windows = dict(size=size, overlap=overlap)


def _find_evaluator(cfg: Config, kind: str, argument: str) -> dict[str, Any]:
    """Return the test evaluator of a type.

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
    """Return the test evaluators: a config has one, or a list of them."""
    return [cfg.test_evaluator] if isinstance(cfg.test_evaluator, dict) else cfg.test_evaluator


def _has_key(node: Any, part: str) -> bool:
    return any(part in key for found in nested_dicts(node) for key in found)


def hide_tables(runner: Runner) -> None:
    """Leave mmdet's and mmseg's tables of classes to the log file: the last table has them all."""

    def is_not_table(record: LogRecord) -> bool:
        return not str(record.msg).startswith(('\n+-', 'per class results'))

    for handler in console_handlers(runner.logger):
        handler.addFilter(is_not_table)


def value_or_none(value: float) -> float | None:
    """Return a metric; None if there are no objects for it: COCO has -1 then, mmseg NaN."""
    return None if math.isnan(value) or value == -1 else float(value)


def metric_rows(
    metrics: dict[str, float | None], wanted: list[str], paper: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of the table of metrics.

    Args:
        metrics (dict[str, float]): All metrics.
        wanted (list[str]): The arguments of ``--eval``; none for all.
        paper (dict[str, float], optional): The paper's values, for two more columns. Defaults to
            None.
    """
    rows: list[dict[str, Any]] = [
        {'metric': name, 'value': value} for name, value in metrics.items()
    ]
    for row in rows if paper else ():
        row['paper'] = (paper or {}).get(row['metric'])
        row['difference'] = difference(row['value'], row['paper'])
    parts = [part for name in wanted for part in METRIC_PARTS.get(name, (name,))]
    return [row for row in rows if any(part in row['metric'] for part in parts)] or rows


def difference(measured: float | None, paper: float | None) -> float | None:
    """Return how much more was measured than the paper has; None if either is unknown."""
    return None if measured is None or paper is None else round(measured - paper, 4)


def paper_results(checkpoint: str, measured: Collection[str]) -> tuple[dict[str, float], str]:
    """Return the paper's values of the metrics that were measured, and where they come from.

    Args:
        checkpoint (str): What was tested; only published weights have such values.
        measured (Collection[str]): Names of metrics.
    """
    tests = [t for t in paper_tests_of(checkpoint) if not t.metrics.keys().isdisjoint(measured)]
    sources = [f'{test.data}, tested with xcit_mm::{test.config}' for test in tests]
    text = f'paper: arXiv 2106.09681, {"; ".join(sources)}' if tests else ''
    return {name: value for test in tests for name, value in test.metrics.items()}, text


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


def describe_limit(runner: Runner) -> str:
    """Say how many detections the metrics of detection count; empty for other metrics."""
    for metric in runner.test_loop.evaluator.metrics:
        # Only our metric has such a limit.
        if hasattr(metric, 'max_dets') and {'bbox', 'segm'} & set(metric.metrics):
            why = ', the most objects in an image' if metric.max_dets > 100 else ', as in COCO'
            return f'AP counts at most {metric.max_dets} detections per image and class{why}.'
    return ''
