"""``python -m dev.pretraining_study``: does pre-training help? Makes the tables of the page.

Needs data/bccd and data/camvid; docs/studies/real_data.md says where they come from.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcit_mm.demo.curves import read_curves
from xcit_mm.models.ablations import ABLATIONS
from xcit_mm_cli.common import explain_errors
from xcit_mm_runtime.files import write_atomically

from .studies import Record, Study, Task, add_run_arguments, command, last_checkpoint, train

OUT = Path('work_dirs/pretraining_study')
# What is read from the log of a pre-training, besides the loss.
LOGGED = ['information', 'accuracy/knn', 'accuracy/linear']
# Datasets that are pre-trained on without labels, each with its config.
DINO = {
    'shapes': 'configs/pretraining/dino_xcit_n12_8_shapes.py',
    'bccd': 'configs/pretraining/dino_xcit_n12_16_bccd.py',
    'camvid': 'configs/pretraining/dino_xcit_n12_16_camvid.py',
}
SCRATCH, FROM_DINO, FULL = 'random', 'DINO', 'full network'


def dino_folder(data: str) -> Path:
    return OUT / f'dino_{data}'


def weights_of(data: str) -> Path:
    return dino_folder(data) / 'teacher.safetensors'


def start_from(data: str) -> tuple[str, ...]:
    """Options that start a backbone from the teacher of a dataset."""
    backbone = 'model.backbone.init_cfg'
    changes = dict(_delete_=True, type='Pretrained', checkpoint=weights_of(data))
    return tuple(f'{backbone}.{key}={value}' for key, value in changes.items())


def transfer(title: str, data: str, config: str, **metrics: Any) -> Task:
    """A short training from random weights and from those of DINO."""
    configs = dict.fromkeys((SCRATCH, FROM_DINO), f'dev/peers/{config}_short.py')
    return Task(title, configs, **metrics, options={FROM_DINO: start_from(data)})


MASKS = {'coco/bbox_mAP': 'box AP', 'coco/segm_mAP': 'mask AP'}
BOXES = {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'}
LABELS = {'mIoU': 'mIoU', 'aAcc': 'aAcc'}
CLASSES = {'accuracy/top1': 'top-1'}
TASKS = {
    'shapes_detection': transfer(
        'Shapes: Mask R-CNN',
        'shapes',
        'mask_rcnn_n12_8_shapes',
        metrics=MASKS,
        curve='coco/bbox_mAP',
    ),
    'shapes_segmentation': transfer(
        'Shapes: Semantic FPN',
        'shapes',
        'sem_fpn_n12_8_shapes',
        metrics=LABELS,
        curve='mIoU',
    ),
    'bccd': transfer(
        'BCCD: Faster R-CNN',
        'bccd',
        'faster_rcnn_n12_16_bccd',
        metrics=BOXES,
        curve='coco/bbox_mAP',
    ),
    'camvid': transfer(
        'CamVid: Semantic FPN',
        'camvid',
        'sem_fpn_n12_16_camvid',
        metrics=LABELS,
        curve='mIoU',
    ),
    'classification': Task(
        'Shapes, classified',
        {'XCiT-N12/8, 4 epochs': 'configs/classification/xcit_n12_8_shapes.py'},
        CLASSES,
        'accuracy/top1',
    ),
    'ablations': Task(
        'Ablations',
        dict.fromkeys((FULL, *ABLATIONS), 'dev/peers/xcit_n12_8_shapes_short.py'),
        CLASSES,
        'accuracy/top1',
        options={
            name: ('model.backbone.type=AblatedXCiTClassifier', f'model.backbone.ablation={name}')
            for name in ABLATIONS
        },
    ),
}
# A sanity check, not a comparison.
ONE_SEED = ('classification',)
STUDY = Study(
    TASKS,
    out=OUT,
    page=Path('docs/studies/pretraining.md'),
    records=Path('docs/studies/pretraining.json'),
    picture=Path('docs/studies/images/pretraining_curves.png'),
    first_column='start',
    by_time=False,
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m dev.pretraining_study',
        description='Pre-train XCiT-N12 with DINO on three small datasets, train detectors and '
        'segmentors from that and from random weights, train the ablations, and write '
        'the tables and curves of docs/studies/pretraining.md. Runs that are done are left out, '
        'interrupted ones are resumed. All of it takes almost two hours of one processor.',
    )
    parser.add_argument(
        '--tasks', nargs='+', choices=TASKS, default=list(TASKS), help='default: all'
    )
    add_run_arguments(parser, seeds=[0, 1, 2])
    return parser.parse_args(argv)


def pretrain(data: str, threads: int) -> None:
    """Pre-train on a dataset and keep the teacher, unless that is done."""
    folder = dino_folder(data)
    record = folder / 'record.json'
    if record.is_file():
        return
    print(f'DINO on {data}: {folder}', flush=True)
    minutes = train(DINO[data], folder, 0, threads)
    command('convert', last_checkpoint(folder), weights_of(data), '--force')
    loss, curves = read_curves(folder, LOGGED)
    content = {
        'task': 'dino',
        'model': data,
        'seed': 0,
        'threads': threads,
        'processor_minutes': minutes,
        'metrics': {'iterations': max(loss)},
        'curve': loss,
        'curves': curves,
    }
    write_atomically(record, json.dumps(content, indent=1) + '\n')


def dino_rows(records: list[Record]) -> list[dict[str, Any]]:
    """A row per dataset: loss, information and, with labels, the accuracy of the features."""
    found = {r['model']: r for r in records if r['task'] == 'dino'}
    rows = []
    for record in (found[data] for data in DINO if data in found):
        loss = list(record['curve'].values())
        information, knn, linear = (list(record['curves'][name].values()) for name in LOGGED)
        rows.append(
            {
                'images': record['model'],
                'iterations': record['metrics']['iterations'],
                'loss': span(max(loss), loss[-1], 2),
                'information': span(min(information), information[-1], 2),
                'k-NN, %': span(knn[0], knn[-1], 1) if knn else '',
                'linear, %': span(linear[0], linear[-1], 1) if linear else '',
                'processor minutes': record['processor_minutes'],
            }
        )
    return rows


def span(start: float, end: float, digits: int) -> str:
    return f'{start:.{digits}f} to {end:.{digits}f}'


def work(args: argparse.Namespace) -> int:
    for seed in [] if args.report else args.seeds:
        for task in args.tasks:
            for model in TASKS[task].configs:
                if seed != args.seeds[0] and task in ONE_SEED:
                    continue
                if model == FROM_DINO:
                    pretrain(task.partition('_')[0], args.threads)
                STUDY.run(task, model, seed, args.threads)
    records = STUDY.read_records()
    tables = {task: STUDY.headline_rows(task, records) for task in TASKS}
    STUDY.write(records, {'dino': dino_rows(records), **tables})
    return 0


if __name__ == '__main__':
    sys.exit(explain_errors(work, parse_args(None)))
