"""Test a detector or a segmentor."""

import argparse
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process

from ..configs import innermost_datasets, nested_dicts
from ..errors import UserError
from ..files import check_writable, write_atomically
from ..tables import format_table
from .common import (
    build_runner,
    check_checkpoint,
    check_datasets,
    command,
    load_config,
    prepare,
    task_of,
)

# task -> the evaluator that --eval configures, its setting, and its metrics
METRICS = {
    'mmdet': ('CocoMetric', 'metric', ('bbox', 'segm', 'proposal', 'proposal_fast')),
    'mmseg': ('IoUMetric', 'iou_metrics', ('mIoU', 'mDice', 'mFscore')),
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
    if 'proposal_fast' in metrics:
        from ..compat.ragged_recalls import FastRecallCocoMetric

        evaluator['type'] = FastRecallCocoMetric.__name__


def find_evaluator(cfg: Config, kind: str, argument: str) -> dict[str, Any]:
    """The test evaluator of a type.

    Args:
        cfg (Config): The config.
        kind (str): Name of the type.
        argument (str): What needs it, for the error message.
    """
    for evaluator in _evaluators(cfg):
        if str(evaluator.get('type')).split('.')[-1] == kind:
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
    if args.show or args.show_dir:
        hook = cfg.default_hooks.visualization
        hook.draw = True
        hook.show, hook.wait_time = args.show, args.wait_time
        if args.show_dir and task == 'mmdet':
            hook.test_out_dir = args.show_dir
        elif args.show_dir:
            cfg.visualizer.save_dir = args.show_dir
    if args.out is None:
        return
    if task == 'mmseg':
        evaluator = find_evaluator(cfg, 'IoUMetric', '--out')
        evaluator.update(output_dir=args.out, keep_results=True)
    else:
        if not args.out.endswith(('.pkl', '.pickle')):
            raise UserError(f'--out must end in .pkl for detection, not {args.out}.')
        dump = dict(type='DumpDetResults', out_file_path=args.out)
        cfg.test_evaluator = [*_evaluators(cfg), dump]


def set_tta(cfg: Config) -> None:
    """Wrap the model for test-time augmentation; flip if the config has no settings for it."""
    datasets = list(innermost_datasets(cfg.test_dataloader))
    if task_of(cfg) == 'mmdet':
        if _has_key(cfg.model, 'mask_head'):
            raise UserError(
                '--tta: mmdet merges boxes only, not masks. Leave it out, or test a config without '
                'a mask head.'
            )
        nms = dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
        cfg.setdefault('tta_model', dict(type='DetTTAModel', tta_cfg=nms))
        if 'tta_pipeline' not in cfg:
            *pipeline, pack = deepcopy(list(datasets[0].pipeline))
            keys = (*pack.get('meta_keys', ()), 'flip', 'flip_direction')
            flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
            augment = [flips, [dict(pack, meta_keys=keys)]]
            cfg.tta_pipeline = [*pipeline, dict(type='TestTimeAug', transforms=augment)]
    for dataset in datasets:
        dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def select(metrics: dict[str, float], wanted: list[str] | None) -> list[dict[str, Any]]:
    """Rows of the final table: the requested metrics."""
    rows: list[dict[str, Any]] = [
        {'metric': name, 'value': value} for name, value in metrics.items()
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
    metrics = runner.test()
    if not is_main_process():
        return 0
    print('\n' + format_table(select(metrics, args.eval)))
    if args.json:
        text = json.dumps({name: float(value) for name, value in metrics.items()}, indent=1)
        write_atomically(args.json, text + '\n')
    for what, path in (
        ('metrics', args.json),
        ('predictions', args.out),
        ('pictures', args.show_dir),
    ):
        if path:
            print(f'{what}: {path}')
    return 0
