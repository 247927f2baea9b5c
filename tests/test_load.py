"""Many images in one process, by tools/infer.py, and many rounds: memory stays where it was."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from dev.memory import reset_peak, status
from dev.soak import Subject, save_random_weights
from xcit_mm.datasets.shapes import make_shapes

ROOT = Path(__file__).parents[1]
CONFIGS = {
    # Ten detections an image are enough, and faster to write and to draw than a hundred.
    'detection': """
_base_ = '{}/configs/detection/mask_rcnn_xcit_n12_8_shapes.py'
model = dict(test_cfg=dict(rpn=dict(max_per_img=30), rcnn=dict(max_per_img=10)))
""",
    'segmentation': "_base_ = '{}/configs/segmentation/sem_fpn_xcit_n12_8_shapes.py'",
}


def start(name, images, folder):
    config = folder / f'{name}.py'
    config.write_text(CONFIGS[name].format(ROOT))
    checkpoint = save_random_weights(Config.fromfile(config), folder / f'{name}.pth')
    return subprocess.Popen(
        [
            sys.executable, 'tools/infer.py', images, '--config', config,
            '--checkpoint', checkpoint, '--out-dir', folder / name, '--score-thr', '0',
        ],
        cwd=ROOT, env={**os.environ, 'OMP_NUM_THREADS': '1'}, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def growth(process, pictures, first):
    """By which part peak memory rose after so many images; theirs is that of their second half."""
    marks, peak = [first // 2, first], 0.0
    try:
        while process.poll() is None:
            done = len(list(pictures.glob('*.png')))
            latest = status('VmHWM', process.pid)
            if marks and done >= marks[0]:
                del marks[0]
                peak = latest
                reset_peak(process.pid)
            time.sleep(0.2)
    except (OSError, KeyError):  # it ended while we looked
        process.wait()
    assert process.returncode == 0 and not marks
    print(f'{pictures}: {peak:.1f} MB after {first} images, {latest:.1f} MB at the end')
    return latest / peak - 1


def infer_many(folder, count, first):
    images = make_shapes(folder / 'shapes', 1, count, size=64) / 'coco' / 'val2017'
    processes = [start(name, images, folder) for name in CONFIGS]
    with ThreadPoolExecutor() as pool:
        pictures = [folder / name / 'vis' for name in CONFIGS]
        grown = list(pool.map(growth, processes, pictures, [first] * 2))
    predictions = json.loads((folder / 'detection' / 'predictions.json').read_text())
    assert len(predictions['images']) == count <= len(predictions['annotations'])
    assert len(list((folder / 'segmentation' / 'labels').glob('*.png'))) == count
    return grown


def test_memory_stays_where_it_was_after_80_of_240_images(tmp_path):
    # Keeping ten masks an image would take twice as much.
    assert max(infer_many(tmp_path, count=240, first=80)) < 0.005


@pytest.mark.long
def test_memory_stays_where_it_was_after_200_of_5000_images(tmp_path):
    assert max(infer_many(tmp_path, count=5000, first=200)) < 0.02


def test_soak_says_what_it_did(tmp_path):
    run = subprocess.run(
        [sys.executable, '-m', 'dev.soak', '--minutes=0', '--images=8', '--out-dir', tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    report = json.loads((tmp_path / 'soak.json').read_text())
    assert report['images'] == 2 * 2 * 8 and report['failures'] == [], run.stderr[-2000:]
    assert len(report['memory']) == 2
    # So few images are all warm-up: memory may rise, and then the status says so.
    assert run.returncode == (max(report['memory']) > 1.02 * report['memory'][0])
    assert '2 rounds in' in run.stdout.splitlines()[-2]
    assert run.stdout.splitlines()[-1].endswith('soak.json')


def test_soak_notices_other_results_and_damaged_checkpoints(tmp_path):
    images = [make_shapes(tmp_path / 'shapes', 1, 1) / 'coco' / 'val2017' / '000000000001.jpg']
    subject = Subject('xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py', tmp_path)
    assert list(subject.problems(images)) == []
    torch.nn.init.normal_(subject.inferencer.model.decode_head.conv_seg.weight)
    assert list(subject.problems(images)) == ['the results differ from those of the first round']
    subject.checkpoint.write_bytes(b'')
    (problem,) = subject.problems(images)
    assert 'mmseg.pth' in problem
