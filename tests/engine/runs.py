"""Short training runs through tools/train.py, for tests that interrupt them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from xcit_mm_runtime.files import UNFINISHED

ROOT = Path(__file__).parents[2]

# An iteration takes a few hundredths of a second and is followed by a checkpoint. Flips, crops,
# dropout, stochastic depth and BatchNorm all get a chance to go wrong.
SEGMENTOR = """
_base_ = '{root}/configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(
        _delete_=True, type='XCiT', arch=dict(embed_dims=32, depth=4, num_heads=4), patch_size=16,
        out_indices=(0, 1, 2, 3), drop_path_rate=0.2),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=16, num_classes=6))
metainfo = dict(classes=('background', 'circle', 'square', 'triangle', 'star', 'cross'))
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs')]
dataset = dict(
    type='BaseSegDataset', data_root='{data}/ade', metainfo=metainfo, reduce_zero_label=True)
train_dataloader = dict(
    num_workers=1, dataset=dict(pipeline=pipeline, **dataset))
val_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline, **dataset))
test_dataloader = val_dataloader
train_cfg = dict(max_iters={steps}, val_interval=10)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=5),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=5, end={steps})]
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.0))
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=1, max_keep_ckpts=2))
"""
DETECTOR = """
_base_ = '{root}/configs/detection/mask_rcnn_xcit_n12_16_3x.py'
model = dict(
    backbone=dict(
        _delete_=True, type='XCiT', arch=dict(embed_dims=32, depth=4, num_heads=4), patch_size=16,
        out_indices=(0, 1, 2, 3), drop_path_rate=0.2),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32),
        bbox_head=dict(in_channels=32, fc_out_channels=64),
        mask_roi_extractor=dict(out_channels=32),
        mask_head=dict(in_channels=32, conv_out_channels=16, num_convs=1)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=100, max_per_img=50), rcnn=dict(sampler=dict(num=32))))
sizes = [(64, 96), (72, 96), (80, 112)]
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomChoiceResize', scales=sizes, keep_ratio=True),
    dict(type='PackDetInputs')]
root = '{data}/coco/'
train_dataloader = dict(num_workers=2, dataset=dict(data_root=root, pipeline=pipeline))
val_cfg = val_dataloader = val_evaluator = None
test_cfg = test_dataloader = test_evaluator = None
train_cfg = dict(max_epochs={steps})
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=5),
    dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end={steps}, convert_to_iter_based=True)]
optim_wrapper = dict(optimizer=dict(lr=1e-3))
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=1, max_keep_ckpts=2))
"""


def write_config(folder, template, data, steps, extra=''):
    path = Path(folder) / 'config.py'
    path.write_text(template.format(root=ROOT, data=data, steps=steps) + extra)
    # With all that it inherits: resolving that would take every process half a second.
    path.write_text(Config.fromfile(path, import_custom_modules=False).pretty_text)
    return path


def start(work_dir, *arguments, env=None, launch=('tools/train.py',), executable=sys.executable):
    """Start a tool; the output of all its runs goes to ``work_dir/output.txt``."""
    work_dir.mkdir(parents=True, exist_ok=True)
    command = [executable, *map(str, launch), *map(str, arguments), '--work-dir', str(work_dir)]
    with (work_dir / 'output.txt').open('ab') as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'OMP_NUM_THREADS': '1', **(env or {})},
        )


def run(work_dir, *arguments, **kwargs):
    """Run a tool to the end; returns its exit status and its output."""
    before = printed(work_dir)
    status = start(work_dir, *arguments, **kwargs).wait(timeout=900)
    return status, printed(work_dir)[len(before) :]


def printed(work_dir):
    path = work_dir / 'output.txt'
    return path.read_text(errors='replace') if path.exists() else ''


def kill(process):
    process.send_signal(signal.SIGKILL)
    return process.wait(timeout=60)


def saved_step(work_dir):
    """The step of the checkpoint that ``--resume`` would choose, or 0."""
    if not (work_dir / 'last_checkpoint').exists():
        return 0
    return int(Path(find_latest_checkpoint(str(work_dir))).stem.split('_')[-1])


def wait_for(condition, process=None, timeout=600):
    """Wait until a condition holds; returns False if the process ends first."""
    end = time.monotonic() + timeout
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        if time.monotonic() > end:
            if process is not None:
                process.kill()
            raise TimeoutError('the condition was never met')
        time.sleep(0.001)
    return True


def kill_while_starting(process, work_dir, chance):
    """Kill it in the first seconds: imports, building, reading the checkpoint."""
    time.sleep(chance.uniform(0, 8))
    assert process.poll() is None
    kill(process)


def wait_for_steps(process, work_dir, chance):
    """Wait until one to three more steps are saved."""
    step = saved_step(work_dir) + chance.randint(1, 3)
    assert wait_for(lambda: saved_step(work_dir) >= step, process)


def kill_while_training(process, work_dir, chance):
    """Kill it at a random time after a few steps: in forward, backward, validation or a save."""
    wait_for_steps(process, work_dir, chance)
    time.sleep(chance.uniform(0, 0.15))
    assert process.poll() is None
    kill(process)


def kill_while_writing(process, work_dir, chance):
    """Kill it while a checkpoint does not have its final name yet."""
    wait_for_steps(process, work_dir, chance)

    def is_writing():
        return any(work_dir.glob('*.pth' + UNFINISHED))

    while True:
        assert wait_for(is_writing, process)
        process.send_signal(signal.SIGSTOP)  # it must not finish before we check again
        time.sleep(0.01)
        if is_writing():
            break
        process.send_signal(signal.SIGCONT)
    kill(process)
    assert is_writing()


def check_readable(work_dir):
    """Check that every checkpoint is complete, above all the one that a resumed run would use."""
    chosen = find_latest_checkpoint(str(work_dir))
    paths = {str(path) for path in work_dir.glob('*.pth')}
    assert chosen is None or chosen in paths
    for path in paths:
        content = load(path)
        assert content['state_dict'] and content['optimizer'] and content['param_schedulers']


def load(path):
    return torch.load(path, map_location='cpu', weights_only=True)


def differences(one, two, where=''):
    """Names of the values in which two nested containers differ; tensors bit by bit."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return [] if one.dtype == two.dtype and torch.equal(one, two) else [where]
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [d for k in one for d in differences(one[k], two[k], f'{where}.{k}')]
    if isinstance(one, (list, tuple)) and isinstance(two, type(one)) and len(one) == len(two):
        return [
            d
            for i, pair in enumerate(zip(one, two, strict=True))
            for d in differences(*pair, f'{where}.{i}')
        ]
    return [] if one == two else [where]


def trained(path):
    """The results of training that a resumed run continues from, without logs and times."""
    content = load(path)
    return {key: content[key] for key in ('state_dict', 'optimizer', 'param_schedulers')}
