"""The infer command on many images in one process: memory does not grow."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dev.measure import memory_status, reset_peak
from xcit_mm.datasets.shapes import make_shapes

from ..tiny import ROOT

HEADS = ('mask_rcnn', 'sem_fpn')


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


@pytest.mark.long
def test_memory_does_not_grow_after_200_of_1000_images(trained, tmp_path):
    count, first = 1000, 200
    images = make_shapes(tmp_path / 'shapes', 1, count, size=64) / 'coco' / 'val2017'
    processes = []
    for head in HEADS:
        config, checkpoint = trained(head)
        words = ['--config', config, '--checkpoint', checkpoint, '--out-dir', tmp_path / head]
        words += ['--score-thr', '0'] if head == 'mask_rcnn' else []
        # Let glibc return arrays to the system when they are freed. On its heap, the peak would
        # depend on which gap one of 5 MB, the scores of 150 classes, happens to be put into.
        env = {**os.environ, 'OMP_NUM_THREADS': '1', 'MALLOC_MMAP_THRESHOLD_': '65536'}
        command = [sys.executable, 'tools/infer.py', images, *words]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL))
    with ThreadPoolExecutor() as pool:
        pictures = [tmp_path / head / 'vis' for head in HEADS]
        grown = list(pool.map(growth, processes, pictures, [first] * 2, [count] * 2))
    predictions = json.loads((tmp_path / 'mask_rcnn' / 'predictions.json').read_text())
    assert len(predictions['images']) == count <= len(predictions['annotations'])
    assert len(list((tmp_path / 'sem_fpn' / 'labels').glob('*.png'))) == count
    # 0.5% of 480 MB is 3 kB for each of the other 800 images. Keeping the masks would take 40 kB.
    assert max(grown) < 0.005
