"""``python -m dev.real_data``: trains on real photographs for docs/studies/real_data.md.

Needs data/bccd and data/camvid; the page says where they come from and how to lay them out.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from xcit_mm.errors import UserError
from xcit_mm.tables import metric_digits
from xcit_mm_cli.common import explain_errors

from .studies import Record, Study, Task, add_run_arguments

TASKS = {
    'bccd': Task(
        'BCCD: Faster R-CNN',
        {
            'XCiT-N12/16': 'configs/detection/faster_rcnn_xcit_n12_16_bccd.py',
            'XCiT-T12/16': 'configs/detection/faster_rcnn_xcit_t12_16_bccd.py',
            'ResNet-50': 'dev/peers/faster_rcnn_r50_bccd.py',
        },
        {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'},
        'coco/bbox_mAP',
    ),
    'camvid': Task(
        'CamVid: Semantic FPN',
        {
            'XCiT-N12/16': 'configs/segmentation/sem_fpn_xcit_n12_16_camvid.py',
            'XCiT-T12/16': 'configs/segmentation/sem_fpn_xcit_t12_16_camvid.py',
            'ResNet-50': 'dev/peers/sem_fpn_r50_camvid.py',
        },
        {'mIoU': 'mIoU', 'mAcc': 'mAcc', 'aAcc': 'aAcc'},
        'mIoU',
    ),
}
STUDY = Study(
    TASKS,
    out=Path('work_dirs/real_data'),
    page=Path('docs/studies/real_data.md'),
    records=Path('docs/studies/real_data.json'),
    picture=Path('docs/studies/images/real_data_curves.png'),
    first_column='backbone',
    by_time=True,
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.real_data',
        description='Train Faster R-CNN on BCCD and Semantic FPN on CamVid from scratch, with XCiT '
        'and with ResNet-50, test them, and write the tables and curves of '
        'docs/studies/real_data.md. Runs that are done are left out, interrupted ones are resumed.',
    )
    parser.add_argument(
        '--data', nargs='+', choices=TASKS, default=list(TASKS), help='default: both'
    )
    parser.add_argument('--models', nargs='+', metavar='NAME', help='default: all of the table')
    add_run_arguments(parser, seeds=[0, 1])
    return parser.parse_args(argv)


def class_rows(task: str, records: list[Record]) -> list[dict[str, Any]]:
    """A row per class: the mean over the seeds of each model."""
    rows: dict[str, dict[str, Any]] = {}
    for model in TASKS[task].configs:
        found = [r for r in records if r['task'] == task and r['model'] == model]
        for name in dict.fromkeys(name for r in found for name in per_class(r['metrics'])):
            value = mean(per_class(r['metrics'])[name] for r in found)
            digits = metric_digits(TASKS[task].curve)
            rows.setdefault(name, {'class': name})[model] = round(value, digits)
    return list(rows.values())


def per_class(metrics: dict[str, float]) -> dict[str, float]:
    """The AP or IoU of each class in what ``xcit-mm test --json`` wrote."""
    names = {key: re.fullmatch(r'(?:coco/bbox_mAP|IoU)/(.+)', key) for key in metrics}
    return {match[1]: metrics[key] for key, match in names.items() if match}


def work(args: argparse.Namespace) -> int:
    for seed in [] if args.report else args.seeds:
        for task in args.data:
            for model in args.models or TASKS[task].configs:
                if model not in TASKS[task].configs:
                    known = ', '.join(TASKS[task].configs)
                    raise UserError(f'There is no model {model}; choose from {known}.')
                STUDY.run(task, model, seed, args.threads)
    records = STUDY.read_records()
    headlines = {f'{task} headline': STUDY.headline_rows(task, records) for task in TASKS}
    classes = {f'{task} classes': class_rows(task, records) for task in TASKS}
    STUDY.write(records, {**headlines, **classes})
    return 0


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args(None)))
