"""Compares the objects of a dataset with what a detector's settings can reach."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import TASK_UTILS

from ...configs import (
    SLIDING,
    innermost_datasets,
    nested_dicts,
    resizing,
    type_name,
    window_settings,
)
from ...engine.evaluated import find_low_limits
from ..fit import REACHED, VISIBLE
from ..objects import Objects, best_overlaps
from ..problems import Problem

# mmdet's proposals learn nothing of an object whose best anchor overlaps it less.
UNREACHED = 0.3
MAX_UNREACHED = 0.2


class FitReport:
    """How the objects of a dataset fit the settings of a detector.

    Args:
        cfg (Config): The config of the detector.
        objects (Mapping[str, Objects]): The objects of each split; without any, there is nothing
            to report.
    """

    def __init__(self, cfg: Config, objects: Mapping[str, Objects]) -> None:
        self.cfg, self.objects = cfg, objects
        self.is_empty = not cfg.get('model') or not any(len(o.boxes) for o in objects.values())
        if self.is_empty:
            return
        self.everything = Objects.join(objects.values())
        self.seen = self.everything.scaled(resizing(cfg))
        self.patch = _patch_size(cfg)
        self.overlaps = _overlaps(cfg, self.seen)

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of a table: what the data is like, and what the config makes of it."""
        if self.is_empty:
            return []
        cfg, everything, seen = self.cfg, self.everything, self.seen
        counts = everything.counts
        sizes = f'tested at {_span(seen.images)}{_views(cfg)}'
        per_image = f'{counts.mean():.0f} on average, at most {counts.max()}'
        splits = ', '.join(f'{len(part.images)} {split}' for split, part in self.objects.items())
        table = [
            ('images', splits, ''),
            ('image sizes', _span(everything.images), sizes),
            ('objects per image', per_image, _limits(cfg)),
            ('object sizes', _sides(everything), f'{_sides(seen)} at the test scale'),
        ]
        if self.patch:
            share = float((seen.sides < self.patch).mean())
            table.append(('', '', f'{share:.0%} are smaller than a patch of {self.patch} pixels'))
        if self.overlaps is not None:
            reached, lost = (self.overlaps >= REACHED).mean(), (self.overlaps < UNREACHED).mean()
            text = f'best IoU with an anchor: {REACHED} or more for {reached:.0%}'
            table.append(('anchors', '', f'{text}, below {UNREACHED} for {lost:.0%}'))
        return [{'': row[0], 'data': row[1], 'config': row[2]} for row in table]

    def problems(self, name: str) -> Iterator[Problem]:
        """Find settings with which the detector cannot find many of the objects.

        Args:
            name (str): The name of the config.
        """
        if self.is_empty:
            return
        small = float((self.seen.sides < (self.patch or 0)).mean())
        if small > 1 - VISIBLE:
            side = f'{self.patch} x {self.patch}'
            detail = f'{small:.0%} are smaller than {side} pixels at the test scale'
            yield Problem('config: small objects', name, detail)
        lost = 0.0 if self.overlaps is None else float((self.overlaps < UNREACHED).mean())
        if lost > MAX_UNREACHED:
            detail = f'the best IoU is below {UNREACHED} for {lost:.0%}'
            yield Problem('config: anchors', name, detail)
        most = int(self.everything.counts.max())
        if low := find_low_limits(self.cfg.model, most):
            detail = f'an image has {most} objects. To raise them: --cfg-options {" ".join(low)}'
            yield Problem('config: few detections', name, detail)
        kind = type_name(self.cfg.model)
        if window_settings(self.cfg.model.get('test_cfg')) and not kind.startswith(SLIDING):
            yield Problem('config: windows', name, f'the type is {kind}, not {SLIDING}{kind}')


def _patch_size(cfg: Config) -> int | None:
    backbone = cfg.model.get('backbone') or {}
    return backbone.get('patch_size') if type_name(backbone) == 'XCiT' else None


def _overlaps(cfg: Config, seen: Objects) -> np.ndarray | None:
    """Return the IoU of each object with its best anchor; None for detectors without anchors."""
    for node in nested_dicts(cfg.model):
        if isinstance(node.get('anchor_generator'), dict):
            generator = TASK_UTILS.build(node['anchor_generator'])
            if not hasattr(generator, 'base_anchors'):
                return None
            shapes = [
                np.column_stack([level[:, 2:] - level[:, :2], [min(stride)] * len(level)])
                for level, stride in zip(generator.base_anchors, generator.strides, strict=True)
            ]
            return best_overlaps(seen.boxes, np.concatenate(shapes))
    return None


def _views(cfg: Config) -> str:
    """Return the windows of tests and the crops of training, if there are any."""
    windows = window_settings(cfg.model.get('test_cfg'))
    text = f' in windows of {windows["size"]} x {windows["size"]}' if windows else ''
    for dataset in innermost_datasets(cfg.get('train_dataloader')):
        steps = list(nested_dicts(dataset.get('pipeline')))
        if crops := [step['crop_size'] for step in steps if type_name(step) == 'RandomCrop']:
            return f'{text}, trained on crops of {" x ".join(map(str, crops[-1]))}'
    return text


def _limits(cfg: Config) -> str:
    test: Mapping[str, Any] = cfg.model.get('test_cfg') or {}
    names = {'proposals': test.get('rpn'), 'detections': test.get('rcnn', test)}
    found = {name: (node or {}).get('max_per_img') for name, node in names.items()}
    return ', '.join(f'{limit} {name}' for name, limit in found.items() if limit)


def _span(sizes: np.ndarray) -> str:
    """Return the smallest and the largest of some widths and heights."""
    order = sizes.prod(axis=1).argsort()
    texts = [f'{width:.0f} x {height:.0f}' for width, height in sizes[order[[0, -1]]]]
    return ' to '.join(dict.fromkeys(texts))


def _sides(objects: Objects) -> str:
    low, middle, high = np.quantile(objects.sides, (0.05, 0.5, 0.95))
    return f'{low:.0f} to {high:.0f} pixels, median {middle:.0f}'
