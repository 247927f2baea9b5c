"""tools/infer.py on many images in one process: memory does not grow."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mmengine.config import Config

from dev.measure import memory_status, reset_peak
from dev.soak import save_random_weights
from xcit_mm.datasets.shapes import make_shapes

from ..tiny import ROOT, shrink

CONFIGS = {
    'detection': 'detection/mask_rcnn_xcit_n12_8_shapes.py',
    'segmentation': 'segmentation/sem_fpn_xcit_n12_8_shapes.py',
}


def start(name, images, folder):
    cfg = Config.fromfile(ROOT / 'configs' / CONFIGS[name])
    shrink(cfg.model)
    if name == 'detection':
        # Ten detections per image are enough, and faster to write and to draw than a hundred.
        cfg.merge_from_dict(
            {'model.test_cfg.rpn.max_per_img': 30, 'model.test_cfg.rcnn.max_per_img': 10}
        )
    config = folder / f'{name}.py'
    config.write_text(cfg.pretty_text)
    checkpoint = save_random_weights(cfg, folder / f'{name}.pth')
    return subprocess.Popen(
        [
            sys.executable, 'tools/infer.py', images, '--config', config,
            '--checkpoint', checkpoint, '--out-dir', folder / name,
            *(['--score-thr', '0'] if name == 'detection' else []),
        ],
        cwd=ROOT, env={**os.environ, 'OMP_NUM_THREADS': '1'}, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def growth(process, pictures, first, count):
    """Growth of peak memory after ``first`` images, relative to the peak of their second half."""
    marks, peak = [first // 2, first], 0.0
    try:
        while process.poll() is None:
            done = len(list(pictures.glob('*.png')))
            if done < count:  # at exit, CUDA's libraries are read into memory once more
                latest = memory_status('VmHWM', process.pid)
            if marks and done >= marks[0]:
                del marks[0]
                peak = latest
                reset_peak(process.pid)
            time.sleep(0.2)
    except (OSError, KeyError):  # it ended in the meantime
        process.wait()
    assert process.returncode == 0 and not marks
    print(f'{pictures}: {peak:.1f} MB after {first} images, {latest:.1f} MB at the end')
    return latest / peak - 1


def infer_many(folder, count, first):
    images = make_shapes(folder / 'shapes', 1, count, size=64) / 'coco' / 'val2017'
    processes = [start(name, images, folder) for name in CONFIGS]
    with ThreadPoolExecutor() as pool:
        pictures = [folder / name / 'vis' for name in CONFIGS]
        grown = list(pool.map(growth, processes, pictures, [first] * 2, [count] * 2))
    predictions = json.loads((folder / 'detection' / 'predictions.json').read_text())
    assert len(predictions['images']) == count <= len(predictions['annotations'])
    assert len(list((folder / 'segmentation' / 'labels').glob('*.png'))) == count
    return grown


@pytest.mark.long
def test_memory_does_not_grow_after_200_of_1000_images(tmp_path):
    # 0.5% of 480 MB is 3 kB for each of the other 800 images. Keeping the masks would take 40 kB.
    assert max(infer_many(tmp_path, count=1000, first=200)) < 0.005
