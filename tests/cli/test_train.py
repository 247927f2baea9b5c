"""The train command: every head and patch size, its options, and two processes."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from xcit_mm.weights import read_checkpoint
from xcit_mm_cli import parse_args, train

from ..tiny import HEADS, ROOT, call, write_config


@pytest.mark.parametrize('patch_size', [16, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize('head', HEADS)
def test_every_head_trains_validates_and_tests(head, patch_size, trained, tmp_path, capfd):
    """One step of the recipe with a tiny model: its pipelines, losses, schedule and metrics."""
    config, checkpoint = trained(head, patch_size)
    saved = read_checkpoint(checkpoint)['state_dict']
    assert all(torch.isfinite(t).all() for t in saved.values() if t.is_floating_point())
    work_dir = checkpoint.parent
    (log,) = work_dir.glob('*/*.log')
    assert f'Done: checkpoints and logs are in {work_dir}' in log.read_text()
    metrics = ['mIoU'] if 'rcnn' not in head else ['bbox', 'segm'] if 'mask' in head else ['bbox']
    wanted = {name if name == 'mIoU' else f'coco/{name}_mAP' for name in metrics}
    (scalars,) = work_dir.glob('*/vis_data/scalars.json')
    validated = json.loads(scalars.read_text().splitlines()[-1])
    assert wanted <= validated.keys()
    capfd.readouterr()
    argv = [config, checkpoint, '--eval', *metrics, '--work-dir', tmp_path]
    assert call('test', *argv) == 0
    printed = capfd.readouterr().out
    assert all(f'{name} ' in printed for name in wanted)


def test_without_network_the_way_to_train_from_scratch_is_named(
    small_data, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    path = write_config(tmp_path, 'seg', small_data)
    weights = 'http://127.0.0.1:9/w.pth'  # nothing listens there
    options = [f'model.backbone.init_cfg.{k}' for k in ('type=Pretrained', f'checkpoint={weights}')]
    words = [path, '--work-dir', tmp_path / 'work', '--cfg-options', *options]
    path.write_text(path.read_text() + "model['backbone']['init_cfg'] = dict()\n")
    assert call('train', *words) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert 'could not be downloaded' in error and '--scratch' in error
    assert '--cfg-options model.backbone.init_cfg=None' in error


@pytest.mark.parametrize(
    'name',
    [
        'segmentation/upernet_xcit_n12_8_160k',
        'segmentation/sem_fpn_xcit_n12_8_shapes',
        'detection/mask_rcnn_xcit_n12_8_3x',
        'classification/xcit_n12_8_in1k',
        'pretraining/dino_xcit_s12_8_300e',
    ],
)
def test_amp_turns_mixed_precision_on_in_every_kind_of_config(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    cfg = Config.fromfile(ROOT / f'configs/{name}.py')
    train.apply_arguments(cfg, parse_args('train', ['config.py', '--amp']))
    assert (cfg.optim_wrapper.type, cfg.optim_wrapper.loss_scale) == ('AmpOptimWrapper', 'dynamic')


def test_seed_and_deterministic_keep_other_settings_of_randomness():
    def randomness(*words, **settings):
        cfg = Config(settings)
        train.apply_arguments(cfg, parse_args('train', ['config.py', *words]))
        return cfg.get('randomness')

    given = dict(seed=5, diff_rank_seed=True, deterministic=True)
    assert randomness(randomness=given) == given
    assert randomness('--seed', '0', randomness=given) == given | dict(seed=0)
    assert randomness('--deterministic', randomness=dict(seed=5)) == dict(
        seed=5, deterministic=True
    )
    assert randomness('--deterministic') == dict(seed=None, deterministic=True)


def test_a_scaled_constant_rate_and_a_resumed_run_with_another_batch(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'det', small_data)

    def run(batch_size, epochs, *options):
        loader = 'train_dataloader'
        settings = [
            f'train_cfg.max_epochs={epochs}', f'{loader}.batch_size={batch_size}',
            f'{loader}.dataset.indices=2', 'default_hooks.logger.interval=1',
            'param_scheduler=None',
        ]  # fmt: skip
        words = [config, '--work-dir', tmp_path / 'work', '--no-validate', *options]
        assert call('train', *words, '--auto-scale-lr', '--cfg-options', *settings) == 0
        return ''.join(capfd.readouterr())

    text = run(1, 1)
    assert 'batch of 1, AdamW, learning rate 6.25e-06' in text  # 1e-4 is for 16 images
    rates = set(re.findall(r'(base_lr|[^_]lr): (\S+)', text))
    assert rates == {('base_lr', '6.2500e-06'), (' lr', '6.2500e-06')}
    assert 'WARNING' not in text and 'param_scheduler' not in text
    run(2, 2, '--resume')
    checkpoint = torch.load(tmp_path / 'work' / 'epoch_2.pth', weights_only=False)
    assert checkpoint['meta']['iter'] == 2  # two epochs of one iteration: no time left is negative


@HOOKS.register_module(force=True)
class CtrlC(Hook):
    def __init__(self, iteration):
        self.iteration = iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.iteration:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_with_a_line_that_says_how_to_continue(small_data, tmp_path, capfd):
    config, work_dir = write_config(tmp_path, 'seg', small_data), tmp_path / 'work'
    text = config.read_text()
    for iteration, message in (
        (0, 'No checkpoint has been saved yet.'),
        (1, f'{work_dir}/iter_1.pth, is complete: --resume continues from it.'),
    ):
        config.write_text(f"{text}\ncustom_hooks = [dict(type='CtrlC', iteration={iteration})]\n")
        options = ['train_cfg.max_iters=3', 'default_hooks.checkpoint.interval=1']
        words = [config, '--work-dir', work_dir, '--cfg-options', *options]
        assert call('train', *words) == 130
        error = capfd.readouterr().err
        assert error.splitlines()[-1].startswith('Interrupted. ') and message in error
        assert 'Traceback' not in error


TWO = """
_base_ = '{base}'
model = dict(
    data_preprocessor=dict(size=(96, 96)),
    backbone=dict(norm_eval=True, drop_path_rate=0.0),
    decode_head=dict(norm_cfg=dict(_delete_=True, type='GN', num_groups=8), dropout_ratio=0.0))
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='Resize', scale=(96, 96), keep_ratio=False),
    dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size={batch_size}, sampler=dict(shuffle=False), dataset=dict(pipeline=pipeline))
val_cfg = val_dataloader = val_evaluator = None
param_scheduler = []
optim_wrapper = dict(_delete_=True, optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(checkpoint=dict(interval=1), logger=dict(interval=1))
"""


@pytest.mark.long
def test_two_gloo_processes_take_the_step_of_one(small_data, tmp_path, free_port):
    """Each has half of the batch, so the gradient of one of them is another."""
    base, states = write_config(tmp_path, 'seg', small_data), []
    env = {**os.environ, 'PYTHON': sys.executable, 'PORT': str(free_port)}
    for processes, command in (
        (1, [sys.executable, 'tools/train.py']),
        (2, ['tools/dist_train.sh']),
    ):
        config, work_dir = tmp_path / f'p{processes}.py', tmp_path / f'work{processes}'
        config.write_text(TWO.format(base=base, batch_size=4 // processes))
        count = ['2'] if processes == 2 else []
        run = subprocess.run(
            [*command, config, *count, '--seed', '3', '--work-dir', work_dir],
            cwd=ROOT, capture_output=True, text=True, timeout=600, env=env,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-3000:]
        states.append(read_checkpoint(work_dir / 'iter_1.pth')['state_dict'])
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-5, atol=1e-5, msg=name)
