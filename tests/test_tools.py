"""The tools, run as users run them, on small data in COCO's and ADE20k's own layout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
DETECTION = 'configs/detection/mask_rcnn_xcit_n12_16_3x.py'
SEGMENTATION = 'configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
SMALL = '[(96,160)]'


def tool(name, *arguments, env=None, timeout=600):
    return subprocess.run(
        [sys.executable, f'tools/{name}', *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )


def detection_options(data):
    """Small images, few of them, and no weights to fetch."""
    root = f'{data}/coco/'
    step = 'train_dataloader.dataset.pipeline.3.transforms'
    loaders = ('train_dataloader', 'val_dataloader', 'test_dataloader')
    return [
        'model.backbone.init_cfg=None',
        *(f'{loader}.dataset.data_root={root}' for loader in loaders),
        *(f'{loader}.num_workers=0' for loader in loaders),
        *(f'{loader}.persistent_workers=False' for loader in loaders),
        f'val_evaluator.ann_file={root}annotations/instances_val2017.json',
        f'test_evaluator.ann_file={root}annotations/instances_val2017.json',
        f'{step}.0.0.scales={SMALL}',
        f'{step}.1.0.scales={SMALL}',
        f'{step}.1.1.crop_size=(64,90)',
        f'{step}.1.2.scales={SMALL}',
        *(f'{loader}.dataset.pipeline.1.scale=(160,96)' for loader in loaders[1:]),
        'train_dataloader.dataset.indices=2',
        'model.test_cfg.rcnn.score_thr=0.0',  # one step of training is sure of nothing
        'train_cfg.max_epochs=1',
        'default_hooks.checkpoint.save_optimizer=False',
        'default_hooks.logger.interval=1',
    ]


def segmentation_options(data):
    loaders = ('train_dataloader', 'val_dataloader', 'test_dataloader')
    return [
        'model.backbone.init_cfg=None',
        'model.data_preprocessor.size=(96,96)',
        *(f'{loader}.dataset.data_root={data}/ade' for loader in loaders),
        *(f'{loader}.num_workers=0' for loader in loaders),
        *(f'{loader}.persistent_workers=False' for loader in loaders),
        'train_dataloader.dataset.pipeline.2.scale=(160,96)',
        'train_dataloader.dataset.pipeline.3.crop_size=(96,96)',
        *(f'{loader}.dataset.pipeline.1.scale=(160,96)' for loader in loaders[1:]),
        'train_cfg.max_iters=1',
        'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1',
        'default_hooks.checkpoint.save_optimizer=False',
        'default_hooks.logger.interval=1',
    ]


def options_for(config, data):
    detection = 'detection' in str(config)
    return detection_options(data) if detection else segmentation_options(data)


@pytest.fixture(scope='session')
def trained(small_data, tmp_path_factory):
    """A detector and a segmentor after one step of training through tools/train.py."""
    checkpoints = {}
    for config, name in ((DETECTION, 'epoch_1.pth'), (SEGMENTATION, 'iter_1.pth')):
        work_dir = tmp_path_factory.mktemp('trained')
        run = tool(
            'train.py', config, '--work-dir', work_dir, '--seed', 1,
            '--cfg-options', *options_for(config, small_data),
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-2000:]
        assert f'Done: checkpoints and logs are in {work_dir}' in run.stdout + run.stderr
        checkpoints[config] = work_dir / name
    return checkpoints


CONFIGS = [
    path
    for folder in ('detection', 'segmentation')
    for path in sorted((ROOT / 'configs' / folder).glob('*.py'))
    if not path.stem.endswith(('_shapes', '_1x'))
]
LARGE = ('m24', 'l24')


@pytest.mark.slow
@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_config_trains_validates_and_tests(path, small_data, tmp_path, monkeypatch, capfd):
    """One step of training, a validation and a test, by the code of the tools in this process."""
    from xcit_mm.cli import test, train

    if any(f'_{arch}_' in path.stem for arch in LARGE):
        _forward_only(path)
        return
    options = options_for(path, small_data)
    common = [str(path), '--work-dir', str(tmp_path), '--cfg-options', *options]
    monkeypatch.setattr(sys, 'argv', ['train.py', *common])
    train.main()
    (checkpoint,) = tmp_path.glob('*_1.pth')
    saved = torch.load(checkpoint, weights_only=True)['state_dict']
    assert all(torch.isfinite(t).all() for t in saved.values() if t.is_floating_point())
    metrics = ['bbox', 'segm'] if 'detection' in str(path) else ['mIoU']
    arguments = ['test.py', str(path), str(checkpoint), '--eval', *metrics, *common[1:]]
    monkeypatch.setattr(sys, 'argv', arguments)
    capfd.readouterr()
    test.main()
    printed = capfd.readouterr().out
    wanted = ('coco/bbox_mAP ', 'coco/segm_mAP ') if len(metrics) == 2 else ('mIoU ',)
    assert all(name in printed for name in wanted)


def _forward_only(path):
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    head = model.rpn_head if cfg.default_scope == 'mmdet' else model.decode_head
    with torch.no_grad():
        features = model.extract_feat(torch.randn(1, 3, 64, 64))
        head(features)
    strides = (4, 8, 16, 32)
    assert [f.shape[-1] for f in features[:4]] == [64 // stride for stride in strides]


def metrics_of(work_dir):
    """The metrics that mmengine writes into a run's own folder."""
    files = sorted(Path(work_dir).glob('*/*.json'))
    (path,) = [f for f in files if f.parent.name != 'vis_data']
    return json.loads(path.read_text())


@pytest.mark.parametrize('config', [DETECTION, SEGMENTATION])
def test_same_numbers_as_mmdets_and_mmsegs_own_test(config, trained, small_data, tmp_path):
    options = options_for(config, small_data)
    metrics = ['bbox', 'segm'] if config == DETECTION else ['mIoU']
    result = tmp_path / 'metrics.json'
    ours = tool(
        'test.py', config, trained[config], '--eval', *metrics, '--json', result,
        '--work-dir', tmp_path / 'ours', '--cfg-options', *options,
    )  # fmt: skip
    assert ours.returncode == 0, ours.stderr[-2000:]
    package = 'mmdet' if config == DETECTION else 'mmseg'
    script = Path(__import__(package).__file__).parent / '.mim' / 'tools' / 'test.py'
    theirs = subprocess.run(
        [sys.executable, script, config, trained[config], '--work-dir', tmp_path / 'theirs',
         '--cfg-options', *options],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    ignored = ('time', 'data_time')
    expected = {k: v for k, v in metrics_of(tmp_path / 'theirs').items() if k not in ignored}
    measured = {k: v for k, v in metrics_of(tmp_path / 'ours').items() if k not in ignored}
    assert measured == expected and expected
    assert json.loads(result.read_text()) == pytest.approx(expected, nan_ok=True)
    table = ours.stdout.strip().splitlines()
    assert any(line.startswith('metric') for line in table)
    assert f'metrics: {result}' in table[-1]


def test_eval_sets_the_metrics_whatever_the_config_says(trained, small_data, tmp_path):
    options = segmentation_options(small_data)
    run = tool(
        'test.py', SEGMENTATION, trained[SEGMENTATION], '--eval', 'mDice', 'mFscore',
        '--json', tmp_path / 'm.json', '--work-dir', tmp_path, '--cfg-options', *options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert {'mDice', 'mFscore'} <= json.loads((tmp_path / 'm.json').read_text()).keys()
    options = detection_options(small_data)
    run = tool(
        'test.py', DETECTION, trained[DETECTION], '--eval', 'proposal_fast',
        '--json', tmp_path / 'p.json', '--work-dir', tmp_path, '--cfg-options', *options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert any('AR@' in key for key in json.loads((tmp_path / 'p.json').read_text()))


@pytest.mark.parametrize('config', [DETECTION, SEGMENTATION])
def test_out_show_dir_and_tta(config, trained, small_data, tmp_path):
    out = tmp_path / ('out.pkl' if config == DETECTION else 'out')
    run = tool(
        'test.py', config, trained[config], '--out', out, '--show-dir', tmp_path / 'show',
        *(['--tta'] if config == SEGMENTATION else []),
        '--work-dir', tmp_path / 'work', '--cfg-options', *options_for(config, small_data),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert out.exists() and f'predictions: {out}' in run.stdout
    if config == SEGMENTATION:
        assert len(list(out.glob('*.png'))) == 2
    again = tool('test.py', config, trained[config], '--out', out)
    assert again.returncode == 2 and '--force' in again.stderr
    if config == DETECTION:
        masks = tool('test.py', config, trained[config], '--tta')
        assert masks.returncode == 2 and 'not masks' in masks.stderr


MISSING = {
    'config': (['configs/detection/mask_rcnn_xcit_s12_8_4x.py'], 'Did you mean'),
    'data': ([DETECTION], 'instances_train2017.json'),
    'ade': ([SEGMENTATION], 'ADEChallengeData2016'),
    'resume': ([DETECTION, '--resume', 'nowhere.pth'], 'no checkpoint'),
    'pretrained': (
        [DETECTION, '--cfg-options', 'model.backbone.init_cfg.checkpoint=none.pth'],
        'no checkpoint',
    ),
    'package': (['xcit_mm::detection/none.py'], 'no config'),
}


@pytest.mark.parametrize('what', MISSING)
def test_what_is_missing_is_one_paragraph_and_status_2(what, tmp_path):
    arguments, message = MISSING[what]
    run = tool('train.py', *arguments, '--work-dir', tmp_path / 'work')
    assert run.returncode == 2
    assert message in run.stderr and 'Traceback' not in run.stderr
    assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize(
    'config, metric, known',
    [
        (DETECTION, 'mIoU', 'bbox, segm, proposal, proposal_fast'),
        (SEGMENTATION, 'bbox', 'mIoU, mDice, mFscore'),
    ],
)
def test_a_metric_of_another_task_is_refused(config, metric, known):
    run = tool('test.py', config, 'none.pth', '--eval', metric)
    assert run.returncode == 2 and known in run.stderr
    run = tool('test.py', config, 'none.pth')
    assert run.returncode == 2 and 'no checkpoint' in run.stderr


TOOLS = sorted(path.name for path in (ROOT / 'tools').glob('*.py'))


@pytest.mark.parametrize('name', TOOLS)
def test_every_tool_explains_itself(name):
    run = tool(name, '--help')
    assert run.returncode == 0 and len(run.stdout) > 200
    assert tool(name, '--nonsense').returncode == 2


def test_amp_without_cuda_is_refused():
    if not torch.cuda.is_available():
        run = tool('train.py', DETECTION, '--amp')
        assert run.returncode == 2 and 'CUDA' in run.stderr


TWO = """
_base_ = '{root}/configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
model = dict(
    data_preprocessor=dict(size=(96, 96)),
    backbone=dict(init_cfg=None, norm_eval=True, drop_path_rate=0.0),
    decode_head=dict(norm_cfg=dict(_delete_=True, type='GN', num_groups=8), dropout_ratio=0.0))
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='Resize', scale=(96, 96), keep_ratio=False),
    dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size={batch_size}, num_workers=0, persistent_workers=False,
    sampler=dict(shuffle=False),
    dataset=dict(data_root='{data}/ade', pipeline=pipeline))
val_cfg = val_dataloader = val_evaluator = None
train_cfg = dict(max_iters=1)
param_scheduler = []
optim_wrapper = dict(_delete_=True, optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(checkpoint=dict(interval=1), logger=dict(interval=1))
custom_imports = dict(imports=['xcit_mm', 'loss_of_each_process'], allow_failed_imports=False)
custom_hooks = [dict(type='LossOfEachProcess')]
"""
# mmengine logs the first process's loss alone.
LOSS_HOOK = """
from pathlib import Path
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class LossOfEachProcess(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        (Path(runner.work_dir) / f'loss.{runner.rank}').write_text(repr(float(outputs['loss'])))
"""


def test_two_gloo_processes_take_the_step_of_one(small_data, tmp_path, free_port):
    (tmp_path / 'loss_of_each_process.py').write_text(LOSS_HOOK)
    env = {**os.environ, 'PYTHONPATH': str(tmp_path)}
    results, losses = [], []
    for processes in (1, 2):
        config = tmp_path / f'p{processes}.py'
        config.write_text(TWO.format(root=ROOT, data=small_data, batch_size=4 // processes))
        work_dir = tmp_path / f'work{processes}'
        arguments = ['--seed', '3', '--work-dir', str(work_dir)]
        if processes == 1:
            run = tool('train.py', config, *arguments, env=env)
        else:
            env |= {'PYTHON': sys.executable, 'PORT': str(free_port)}
            run = subprocess.run(
                ['bash', 'tools/dist_train.sh', str(config), '2', *arguments],
                cwd=ROOT, capture_output=True, text=True, timeout=600, env=env,
            )  # fmt: skip
        assert run.returncode == 0, run.stderr[-3000:]
        results.append(torch.load(work_dir / 'iter_1.pth', weights_only=True))
        losses.append([float(path.read_text()) for path in sorted(work_dir.glob('loss.*'))])
    one, two = results
    assert len(losses[1]) == 2 and losses[1][0] != losses[1][1]
    assert np.mean(losses[1]) == pytest.approx(losses[0][0], rel=1e-5)
    for name, tensor in one['state_dict'].items():
        torch.testing.assert_close(two['state_dict'][name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.fixture
def images(small_data, tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, source in enumerate(sorted((small_data / 'coco' / 'val2017').glob('*.jpg'))[:2]):
        (folder / f'{i}.jpg').write_bytes(source.read_bytes())
    (folder / 'broken.jpg').write_bytes(b'not an image')
    return folder


def test_infer_detects(trained, images, tmp_path):
    out = tmp_path / 'out'
    arguments = ['--config', DETECTION, '--checkpoint', trained[DETECTION], '--out-dir', out]
    run = tool('infer.py', images, *arguments, '--score-thr', '0.0', '--device', 'cpu')
    assert run.returncode == 1, run.stderr[-2000:]
    assert 'skipped, cannot be read' in run.stdout and '2 of 3 images' in run.stdout
    content = json.loads((out / 'predictions.json').read_text())
    assert [Path(i['file_name']).name for i in content['images']] == ['0.jpg', '1.jpg']
    assert len(content['categories']) == 80
    for annotation in content['annotations']:
        assert {'image_id', 'category_id', 'bbox', 'score', 'segmentation'} <= annotation.keys()
    assert cv2.imread(str(out / 'vis' / '0.png')) is not None
    again = tool('infer.py', images, *arguments)
    assert again.returncode == 2 and '--force' in again.stderr
    none = tool('infer.py', tmp_path / 'nothing*.jpg', *arguments)
    assert none.returncode == 2 and 'names no image' in none.stderr


def test_infer_segments(trained, images, tmp_path):
    out = tmp_path / 'out'
    run = tool(
        'infer.py', f'{images}/[01].jpg', '--config', SEGMENTATION, '--checkpoint',
        trained[SEGMENTATION], '--out-dir', out, '--device', 'cpu',
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    labels = cv2.imread(str(out / 'labels' / '0.png'), cv2.IMREAD_UNCHANGED)
    image = cv2.imread(str(images / '0.jpg'))
    assert labels.shape == image.shape[:2] and labels.dtype == np.uint8
    assert (out / 'vis' / '1.png').is_file()
