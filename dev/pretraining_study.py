"""``python -m dev.pretraining_study``: does pre-training help? Makes the tables of the page.

Needs data/bccd and data/camvid; docs/studies/real_data.md says where they come from.
"""

import sys
from pathlib import Path

from mmengine.runner import find_latest_checkpoint

from xcit_mm.demo.curves import read_curves
from xcit_mm.models.ablations import ABLATIONS

from .studies import Record, Row, Study, Task, command

OUT = Path('work_dirs/pretraining_study')
# What is read from the log of a pre-training, besides the loss.
LOGGED = ['information', 'accuracy/knn', 'accuracy/linear']
SCRATCH, FROM_DINO, FULL = 'random', 'DINO', 'full network'
MASKS = {'coco/bbox_mAP': 'box AP', 'coco/segm_mAP': 'mask AP'}
BOXES = {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'}
LABELS = {'mIoU': 'mIoU', 'aAcc': 'aAcc'}
CLASSES = {'accuracy/top1': 'top-1'}
# What others start from, and a sanity check: no comparisons.
ONE_SEED = ('dino', 'classification')


def weights_of(data: str) -> Path:
    return OUT / f'{data}_teacher.safetensors'


def transfer(title: str, data: str, config: str, metrics: dict[str, str]) -> Task:
    """Return a short training from random weights and from those of DINO."""
    configs = dict.fromkeys((SCRATCH, FROM_DINO), f'dev/peers/{config}_short.py')
    start = dict(_delete_=True, type='Pretrained', checkpoint=weights_of(data))
    options = tuple(f'model.backbone.init_cfg.{key}={value}' for key, value in start.items())
    return Task(title, configs, metrics, {FROM_DINO: options})


TASKS = {
    'dino': Task(
        'DINO, without labels',
        {
            'shapes': 'configs/pretraining/dino_xcit_n12_8_shapes.py',
            'bccd': 'configs/pretraining/dino_xcit_n12_16_bccd.py',
            'camvid': 'configs/pretraining/dino_xcit_n12_16_camvid.py',
        },
        {},
    ),
    'shapes_detection': transfer('Shapes: Mask R-CNN', 'shapes', 'mask_rcnn_n12_8_shapes', MASKS),
    'shapes_segmentation': transfer(
        'Shapes: Semantic FPN', 'shapes', 'sem_fpn_n12_8_shapes', LABELS
    ),
    'bccd': transfer('BCCD: Faster R-CNN', 'bccd', 'faster_rcnn_n12_16_bccd', BOXES),
    'camvid': transfer('CamVid: Semantic FPN', 'camvid', 'sem_fpn_n12_16_camvid', LABELS),
    'classification': Task(
        'Shapes, classified',
        {'XCiT-N12/8, 4 epochs': 'configs/classification/xcit_n12_8_shapes.py'},
        CLASSES,
    ),
    'ablations': Task(
        'Ablations',
        dict.fromkeys((FULL, *ABLATIONS), 'dev/peers/xcit_n12_8_shapes_short.py'),
        CLASSES,
        {
            name: ('model.backbone.type=AblatedXCiTClassifier', f'model.backbone.ablation={name}')
            for name in ABLATIONS
        },
    ),
}


class PretrainingStudy(Study):
    """The study of pre-training: DINO runs before what starts from it."""

    def run(self, task: str, model: str, seed: int, threads: int) -> None:
        if task in ONE_SEED and seed != self.seeds[0]:
            return
        if model == FROM_DINO:
            super().run('dino', task.partition('_')[0], self.seeds[0], threads)
        super().run(task, model, seed, threads)

    def results(self, task: str, model: str, folder: Path, threads: int) -> Record:
        if task != 'dino':
            return super().results(task, model, folder, threads)
        command('convert', find_latest_checkpoint(str(folder)), weights_of(model), '--force')
        loss, curves = read_curves(folder, LOGGED)
        return {'metrics': {'iterations': max(loss)}, 'curve': loss, 'curves': curves}

    def tables(self, records: list[Record]) -> dict[str, list[Row]]:
        return {**super().tables(records), 'dino': dino_rows(records)}


def dino_rows(records: list[Record]) -> list[Row]:
    """Return a row per dataset: loss, information and, with labels, accuracy of the features."""
    found = {r['model']: r for r in records if r['task'] == 'dino'}
    rows = []
    for record in (found[data] for data in TASKS['dino'].configs if data in found):
        loss = list(record['curve'].values())
        information, knn, linear = (list(record['curves'][name].values()) for name in LOGGED)
        rows.append(
            {
                'images': record['model'],
                'iterations': record['metrics']['iterations'],
                'loss': f'{max(loss):.2f} to {loss[-1]:.2f}',
                'information': f'{min(information):.2f} to {information[-1]:.2f}',
                'k-NN, %': f'{knn[0]:.1f} to {knn[-1]:.1f}' if knn else '',
                'linear, %': f'{linear[0]:.1f} to {linear[-1]:.1f}' if linear else '',
                'processor minutes': record['processor_minutes'],
            }
        )
    return rows


STUDY = PretrainingStudy(
    TASKS,
    out=OUT,
    page=Path('docs/studies/pretraining.md'),
    first_column='start',
    by_time=False,
    seeds=(0, 1, 2),
)

if __name__ == '__main__':
    sys.exit(
        STUDY.main(
            'python -m dev.pretraining_study',
            'Pre-train XCiT-N12 with DINO on three small datasets, train detectors and segmentors '
            'from that and from random weights, train the ablations, and write the tables and '
            'curves of docs/studies/pretraining.md. Runs that are done are left out, interrupted '
            'ones are resumed. All of it takes almost two hours of one processor.',
        )
    )
