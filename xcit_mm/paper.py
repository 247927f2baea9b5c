"""The paper's tables, and the tests that reproduce them with the published weights."""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from .tables import best_value
from .weights import published, resolve_short_name


@functools.cache
def paper_tables() -> dict[str, Any]:
    """Return the paper's tables as data."""
    path = Path(__file__).with_name('paper_tables.json')
    return json.loads(path.read_text(encoding='utf-8'))


def paper_rows(table: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table by name, each with its values by column; None if it has none.

    Args:
        table (str): A table of :func:`paper_tables` with ``columns``.
    """
    columns, rows = paper_tables()[table]['columns'], paper_tables()[table]['xcit']
    return {name: dict(zip(columns, row, strict=True)) for name, row in rows.items()}


class PaperHead(NamedTuple):
    """A head of the paper's tables.

    Args:
        name (str): Its name.
        dataset (str): What it was trained on.
        table (str): The table of :func:`paper_tables` that has its results.
        params (str): The column of that table with the numbers of parameters.
        config (str): Our config below ``configs/``, with a placeholder for the size.
        weights (str): Short name of its weights, with a placeholder for the size.
        metrics (dict[str, str]): The metrics that its test reports -> their columns of the table.
        with_pyramid (bool): Whether the paper counts the layers that rescale the features.
    """

    name: str
    dataset: str
    table: str
    params: str
    config: str
    weights: str
    metrics: dict[str, str]
    with_pyramid: bool

    def configs(self) -> dict[str, str]:
        """Return our config for each size of the table."""
        sizes = paper_tables()[self.table]['xcit']
        return {size: self.config.format(_underscored(size)) for size in sizes}


MASK_RCNN = PaperHead(
    name='Mask R-CNN',
    dataset='COCO',
    table='coco_mask_rcnn_3x',
    params='params_M',
    config='detection/mask_rcnn_xcit_{}_3x.py',
    weights='coco/{}',
    metrics={
        f'coco/{ours}_mAP{overlap and "_"}{overlap}': f'{theirs}_AP{overlap}'
        for ours, theirs in (('bbox', 'box'), ('segm', 'mask'))
        for overlap in ('', '50', '75')
    },
    with_pyramid=True,
)
SEM_FPN = PaperHead(
    name='Semantic FPN',
    dataset='ADE20K',
    table='ade20k',
    params='sem_fpn_params_M',
    config='segmentation/sem_fpn_xcit_{}_80k.py',
    weights='ade20k/sem_fpn/{}',
    metrics={'mIoU': 'sem_fpn_mIoU'},
    with_pyramid=False,
)
UPERNET = PaperHead(
    name='UperNet',
    dataset='ADE20K',
    table='ade20k',
    params='upernet_params_M',
    config='segmentation/upernet_xcit_{}_160k.py',
    weights='ade20k/upernet/{}',
    metrics={'mIoU': 'upernet_mIoU'},
    with_pyramid=False,
)
PAPER_HEADS = (MASK_RCNN, SEM_FPN, UPERNET)


class PaperTest(NamedTuple):
    """A test of published weights that the paper has results of.

    Args:
        benchmark (str): ``coco``, ``ade20k``, ``imagenet`` or ``dino``.
        weights (str): Short name of the weights.
        data (str): What they are tested on.
        config (str): Our config below ``configs/``.
        metrics (dict[str, float]): The metrics that the test reports -> the paper's values, in the
            units of the test: from 0 to 1 for AP, in percent for all others.
    """

    benchmark: str
    weights: str
    data: str
    config: str
    metrics: dict[str, float]


def classifier_config(weights: str) -> str:
    """Return our config of a published classifier, such as ``s12/16/384_dist``."""
    *size, training = weights.split('/')
    suffix = {'224': '', '224_dist': '_dist', '384_dist': '_dist_384'}[training]
    return f'classification/xcit_{"_".join(size)}_in1k{suffix}.py'


@functools.cache
def paper_tests() -> tuple[PaperTest, ...]:
    """Return a test for every result that the paper has of published weights."""
    tests = []
    for head in PAPER_HEADS:
        benchmark, data = head.dataset.lower(), f'{head.dataset} validation'
        for size, row in paper_rows(head.table).items():
            metrics = {
                name: round(row[column] / 100 * best_value(name), 3)
                for name, column in head.metrics.items()
            }
            weights = head.weights.format(size.lower())
            tests.append(PaperTest(benchmark, weights, data, head.configs()[size], metrics))
    for name, row in paper_rows('imagenet').items():
        weights = name.lower()
        config = classifier_config(weights)
        for data, part, metric, value in (
            ('ImageNet validation', '', 'accuracy/top1', row['top1']),
            ('ImageNet-V2', 'imagenet_v2/', 'imagenet_v2/top1', row['v2_top1']),
        ):
            if value is not None:
                path = config.replace('/', f'/{part}')
                tests.append(PaperTest('imagenet', weights, data, path, {metric: value}))
    for size, row in paper_rows('dino').items():
        weights, name = f'dino/{size.lower()}', _underscored(size)
        for metric, column, config in (
            ('accuracy/knn', 'knn', f'pretraining/dino_xcit_{name}_300e.py'),
            ('accuracy/top1', 'linear', f'pretraining/linear_xcit_{name}_100e.py'),
        ):
            metrics = {metric: row[column]}
            tests.append(PaperTest('dino', weights, 'ImageNet validation', config, metrics))
    return tuple(tests)


def paper_tests_of(checkpoint: str) -> list[PaperTest]:
    """Return the paper's tests of a checkpoint; none unless it is a short name or its address.

    Args:
        checkpoint (str): As for ``xcit-mm test``: a path, a web address or ``xcit://NAME``.
    """
    short = checkpoint.startswith('xcit://')
    address = resolve_short_name(checkpoint) if short else checkpoint
    return [test for test in paper_tests() if published()[test.weights] == address]


def _underscored(size: str) -> str:
    return size.lower().replace('/', '_')
