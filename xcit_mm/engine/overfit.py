"""Trains on a few images without augmentation: the first thing to try when nothing works."""

import math
import os
from copy import deepcopy
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from ..configs import innermost_datasets, nested_dicts, type_name, window_settings
from ..errors import UserError
from ..tables import best_value, format_metric
from .config import dense_scope_of

# The images are tested this many times, after each was seen so often.
TESTS, SEEN_PER_TEST = 10, 30
# The iterations over which the learning rate rises.
WARM_UP = 50
# scope -> the metric that tells whether images were learned, and the value it must reach
LEARNED = {'mmdet': ('coco/bbox_mAP_50', 0.8), 'mmseg': ('mIoU', 70.0)}
# Metrics that are told next to it, where the model has them.
ALSO_TOLD = ('coco/bbox_mAP', 'coco/segm_mAP')
# How the names begin of steps that are kept. All others change images, or their size.
KEPT = ('Load', 'Pack', 'ScaleTo8Bit')
HINT = (
    'Check the data with "xcit-mm check", look at the images and their objects, and try another '
    'learning rate: --cfg-options optim_wrapper.optimizer.lr=...'
)


def use_few_images(cfg: Config, count: int) -> None:
    """Let a config train on its first images, and validate on the same ones.

    Images are seen as in the test: not flipped or recolored, and cropped only if tests slide
    windows over them, since whole images may then be too large to train on.

    Args:
        cfg (Config): The config of a detector or a segmentor, changed in place.
        count (int): The number of images.
    """
    scope = dense_scope_of(cfg, '--overfit')
    dataset: Any = next(innermost_datasets(cfg.train_dataloader), None)
    tested: Any = next(innermost_datasets(cfg.get('val_dataloader')), None)
    resizing = [s for s in (tested or {}).get('pipeline', ()) if type_name(s) == 'Resize']
    if dataset is None or not resizing:
        raise UserError(
            '--overfit needs a config with a train_dataloader, and with a val_dataloader whose '
            'pipeline resizes images.'
        )
    resize = resizing[0]
    if scope == 'mmseg':  # images of a batch must have one size
        height, width = cfg.model.data_preprocessor.size
        resize = {**resize, 'scale': (width, height), 'keep_ratio': False}
    *loading, packing = [s for s in dataset.pipeline if type_name(s).startswith(KEPT)]
    dataset = {**dataset, 'indices': count}
    if scope == 'mmdet':  # images without objects teach nothing
        dataset['filter_cfg'] = {'filter_empty_gt': True}
    crop = [s for s in dataset['pipeline'] if type_name(s) == 'RandomCrop'][-1:]
    test_cfg = cfg.model.get('test_cfg') or {}
    if crop and scope == 'mmdet' and window_settings(test_cfg):
        resizing = [resize, *crop, dict(type='FilterAnnotations', keep_empty=False)]
    else:
        resizing = [resize]
        test_cfg.pop('windows', None)
    pipeline = [resize if type_name(s) == 'Resize' else s for s in tested.pipeline]
    cfg.train_dataloader.dataset = {**dataset, 'pipeline': [*loading, *resizing, packing]}
    cfg.val_dataloader.dataset = {**deepcopy(dataset), 'pipeline': pipeline}
    for evaluator in nested_dicts(cfg.val_evaluator):
        if 'ann_file' in evaluator:
            root = dataset.get('data_root') or ''
            evaluator['ann_file'] = os.path.join(root, dataset['ann_file'])
    cfg.train_dataloader.batch_size = min(cfg.train_dataloader.get('batch_size', 1), count)
    cfg.model.backbone.drop_path_rate = 0.0
    _set_schedule(cfg, count)


def _set_schedule(cfg: Config, count: int) -> None:
    """Set a schedule: the config's learning rate, which falls to zero in the second half.

    At a constant rate, weights move until the end, and the statistics of BatchNorm, which the test
    uses, lag behind them.
    """
    loader = cfg.train_dataloader
    per_test = math.ceil(SEEN_PER_TEST * count / loader.batch_size)
    last = TESTS * per_test
    length, interval = {'max_iters': last}, per_test
    decay = dict(by_epoch=False, begin=last // 2, end=last)
    if 'max_epochs' in cfg.train_cfg:
        # Epochs of a few iterations would fill the log.
        loader.dataset = dict(type='RepeatDataset', times=SEEN_PER_TEST, dataset=loader.dataset)
        length, interval = {'max_epochs': TESTS}, 1
        # There may be fewer images than were asked for, so that epochs are shorter.
        decay = dict(by_epoch=True, begin=TESTS // 2, end=TESTS, convert_to_iter_based=True)
    cfg.train_cfg.update(length, val_interval=interval)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=min(WARM_UP, last)),
        dict(type='CosineAnnealingLR', **decay),
    ]
    cfg.default_hooks.checkpoint.update(interval=interval, max_keep_ckpts=1, save_best=None)
    cfg.default_hooks.logger.interval = min(50, per_test)


def judge(runner: Runner) -> str:
    """Say whether a model learned the images that :func:`use_few_images` left.

    Args:
        runner (Runner): After the training.
    """
    count = len(runner.val_dataloader.dataset)
    name, wanted = LEARNED[dense_scope_of(runner.cfg, '--overfit')]
    found = {
        metric: runner.message_hub.get_scalar(f'val/{metric}').current()
        for metric in (name, *ALSO_TOLD)
        if f'val/{metric}' in runner.message_hub.log_scalars
    }
    told = ', '.join(
        f'{metric.rpartition("/")[2]} {format_metric(metric, value)} of {best_value(metric)}'
        for metric, value in found.items()
    )
    if name not in found:
        return f'The evaluation on the {count} images has no {name}: {told or "see the log"}.'
    if found[name] >= wanted:
        return f'The model learned the {count} images: {told}.'
    needed = f'{name.rpartition("/")[2]} of {format_metric(name, wanted)}'
    return f'The model did not learn the {count} images: {told}. A {needed} is needed. {HINT}'
