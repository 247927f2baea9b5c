"""``python -m dev.real_data``: trains on real photographs for docs/studies/real_data.md.

Needs data/bccd and data/camvid; the page says where they come from and how to lay them out.
"""

import re
import sys
from pathlib import Path
from statistics import mean

from xcit_mm.tables import metric_digits

from .studies import Record, Row, Study, Task

TASKS = {
    'bccd': Task(
        'BCCD: Faster R-CNN',
        {
            'XCiT-N12/16': 'configs/detection/faster_rcnn_xcit_n12_16_bccd.py',
            'XCiT-T12/16': 'configs/detection/faster_rcnn_xcit_t12_16_bccd.py',
            'ResNet-50': 'dev/peers/faster_rcnn_r50_bccd.py',
        },
        {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'},
    ),
    'camvid': Task(
        'CamVid: Semantic FPN',
        {
            'XCiT-N12/16': 'configs/segmentation/sem_fpn_xcit_n12_16_camvid.py',
            'XCiT-T12/16': 'configs/segmentation/sem_fpn_xcit_t12_16_camvid.py',
            'ResNet-50': 'dev/peers/sem_fpn_r50_camvid.py',
        },
        {'mIoU': 'mIoU', 'mAcc': 'mAcc', 'aAcc': 'aAcc'},
    ),
}


class RealData(Study):
    """The study of real photographs: it also has a table of the classes."""

    def tables(self, records: list[Record]) -> dict[str, list[Row]]:
        headlines = {f'{task} headline': self.headline_rows(task, records) for task in self.tasks}
        classes = {f'{task} classes': self.class_rows(task, records) for task in self.tasks}
        return {**headlines, **classes}

    def class_rows(self, task: str, records: list[Record]) -> list[Row]:
        """Return a row per class: the mean over the seeds of each model."""
        rows: dict[str, Row] = {}
        digits = metric_digits(self.tasks[task].curve)
        for model in self.tasks[task].configs:
            found = [
                per_class(r['metrics'])
                for r in records
                if r['task'] == task and r['model'] == model
            ]
            for name in dict.fromkeys(name for values in found for name in values):
                value = round(mean(values[name] for values in found), digits)
                rows.setdefault(name, {'class': name})[model] = value
        return list(rows.values())


def per_class(metrics: dict[str, float]) -> dict[str, float]:
    """Return the AP or IoU of each class in what ``xcit-mm test --json`` wrote."""
    names = {key: re.fullmatch(r'(?:coco/bbox_mAP|IoU)/(.+)', key) for key in metrics}
    return {match[1]: metrics[key] for key, match in names.items() if match}


STUDY = RealData(
    TASKS,
    out=Path('work_dirs/real_data'),
    page=Path('docs/studies/real_data.md'),
    first_column='backbone',
    by_time=True,
    seeds=(0, 1),
)

if __name__ == '__main__':
    sys.exit(
        STUDY.main(
            'python -m dev.real_data',
            'Train Faster R-CNN on BCCD and Semantic FPN on CamVid from scratch, with XCiT and '
            'with ResNet-50, test them, and write the tables and curves of '
            'docs/studies/real_data.md. Runs that are done are left out, interrupted ones are '
            'resumed.',
        )
    )
