"""Configs that inherit ours by the prefix ``xcit_mm::`` run quietly, from any folder."""

import os
import re
import subprocess
import sys

import pytest

from xcit_mm.engine.config import load_config

from .tiny import BACKBONE, CONFIGS, LOADERS, ROOT

# All commands in one process, since importing PyTorch takes longer than they do.
PROGRAM = """
import sys
import tests.conftest
from tests.tiny import call
weights = 'work/{}_1.pth'
print('== train')
assert call('train', 'user.py', '--work-dir', 'work') == 0
print('== test')
assert call('test', 'user.py', weights, '--work-dir', 'tested') == 0
print('== infer')
assert call('infer', sys.argv[1], '--config', 'user.py', '--checkpoint', weights) == 0
"""
WARNINGS = ('WARNING', 'Warning', 'is not installed', 'Failed to')
# What a run prints after its start.
WORK = r'Exp name|Iter\(|Loading and preparing results|per class'


def write_user_config(folder, task, data):
    text = (CONFIGS[task] + LOADERS).replace('{root}/configs/', 'xcit_mm::')
    text = text.format(data=data, backbone=BACKBONE, filter_cfg=None)
    settings = "train_dataloader['dataset']['indices'] = 1\ncustom_hooks = []\n"
    if task == 'det':  # some detections even after one step, since mmengine warns if there are none
        settings += "model['test_cfg']['rcnn']['score_thr'] = 0.0\n"
    (folder / 'user.py').write_text(text + settings)


@pytest.mark.parametrize('task', ['seg', pytest.param('det', marks=pytest.mark.long)])
def test_a_config_with_the_prefix_runs_quietly_and_starts_on_one_screen(task, small_data, tmp_path):
    write_user_config(tmp_path, task, small_data)
    program = PROGRAM.format('iter' if task == 'seg' else 'epoch')
    image = small_data / 'coco' / 'val2017' / '000000000001.jpg'
    run = subprocess.run(
        [sys.executable, '-c', program, str(image)], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
    )  # fmt: skip
    printed = run.stdout + run.stderr
    assert run.returncode == 0, printed[-3000:]
    assert [line for line in printed.splitlines() if any(w in line for w in WARNINGS)] == []
    for name in ('train', 'test'):
        lines = re.split(WORK, run.stdout.partition(f'== {name}\n')[2])[0].splitlines()
        assert 12 < len(lines) <= 40, '\n'.join(lines)
    train = run.stdout.partition('== train\n')[2].partition('== test')[0]
    for part in ('user.py', 'seed', 'cpu', 'on XCiT, ', '1 images, ', 'batch of 1', '(train) '):
        assert part in train
    (log,) = (tmp_path / 'work').glob('*/*.log')
    kept = log.read_text()
    for part in ('System environment', 'model = dict(', 'paramwise_options', 'Hooks will be'):
        assert part in kept and part not in train
    assert 'FileClient' in kept


def test_a_pipeline_of_the_base_can_be_used_again(tmp_path):
    """mmengine would build it in the scope xcit_mm, with mmcv's classes instead of mmdet's."""
    config = tmp_path / 'user.py'
    config.write_text(
        "_base_ = 'xcit_mm::detection/mask_rcnn_xcit_n12_8_shapes.py'\n"
        'train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))\n'
    )
    cfg = load_config(str(config))
    assert "'xcit_mm'" not in str(cfg.train_dataloader)
    assert cfg.train_dataloader.dataset.pipeline[1].type == 'LoadAnnotations'
