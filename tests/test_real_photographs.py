"""The commands of the documentation on photographs of COCO and ADE20k, from scratch.

``XCIT_MM_DATA`` names a folder with ``tiny_coco/``, some images and the annotations of COCO 2017 in
its own layout, and ``ade20k_sample/``, some images of ADE20k in ``images/`` and ``annotations/``.
Without them, the tests are skipped.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny import ROOT

DATA = Path(os.environ.get('XCIT_MM_DATA', 'no such folder')).absolute()
SCRATCH = 'model.backbone.init_cfg=None'

pytestmark = pytest.mark.long


def part(name):
    if not (DATA / name).is_dir():
        pytest.skip(f'XCIT_MM_DATA has no {name}')
    return DATA / name


@pytest.fixture
def run(tmp_path):
    """Run a command where configs/, tools/ and data/ are, as in a clone; return what it printed."""
    for name in ('configs', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)

    def run_command(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, text=True, timeout=1200,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, 'PYTHONPATH': str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    return run_command


def logged(folder):
    """The losses of each iteration of a training."""
    (file,) = folder.glob('*/vis_data/scalars.json')
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if 'loss' in line]


def test_coco(run, tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/coco').symlink_to(part('tiny_coco'))
    config = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
    settings = ['default_hooks.logger.interval=1', 'train_dataloader.dataset.indices=8',
                'val_dataloader.dataset.indices=2', 'train_cfg.max_epochs=1']  # fmt: skip
    run('tools/train.py', config, '--auto-scale-lr', '--cfg-options', SCRATCH, *settings)
    losses = logged(tmp_path / 'work_dirs/mask_rcnn_xcit_n12_16_3x')
    assert len(losses) == 4 and all(math.isfinite(line['loss']) for line in losses)
    # Nothing is known yet: 81 classes, and objects or none.
    assert losses[0]['loss_cls'] == pytest.approx(math.log(81), rel=0.2)
    assert losses[0]['loss_rpn_cls'] == pytest.approx(math.log(2), rel=0.1)
    checkpoint = f'work_dirs/{Path(config).stem}/epoch_1.pth'
    printed = run(
        'tools/test.py', config, checkpoint, '--eval', 'bbox', 'segm', '--cfg-options',
        'test_dataloader.dataset.indices=2',
    )  # fmt: skip
    assert 'bbox_mAP' in printed and 'segm_mAP' in printed


def test_ade20k(run, tmp_path):
    source = part('ade20k_sample')
    for kind in ('images', 'annotations'):
        folder = tmp_path / 'data/ade/ADEChallengeData2016' / kind
        folder.mkdir(parents=True)
        for split in ('training', 'validation'):
            (folder / split).symlink_to(source / kind)
    config = 'configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
    run('tools/train.py', config, '--cfg-options', SCRATCH, 'train_cfg.max_iters=4',
        'train_cfg.val_interval=4', 'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=4')  # fmt: skip
    losses = logged(tmp_path / 'work_dirs/sem_fpn_xcit_n12_16_80k')
    assert len(losses) == 4 and all(math.isfinite(line['loss']) for line in losses)
    # 150 classes; ignored pixels count as zero.
    assert 1 < losses[0]['loss'] < 1.3 * math.log(150)
    checkpoint = f'work_dirs/{Path(config).stem}/iter_4.pth'
    assert 'mIoU' in run('tools/test.py', config, checkpoint, '--eval', 'mIoU')
