"""From a folder of images with four channels to a detector: DINO, its checkpoint, what is named."""

import json
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint

from tests.engine import runs
from tests.tiny import ROOT, call
from tests.weights.test_formats import to_released
from xcit_mm.demo.page import read_curves
from xcit_mm.models import XCiT
from xcit_mm.pretraining import ImageClassifier, ValidateFirstHook
from xcit_mm.weights import WeightsError, inflate, read_checkpoint, read_weights, recognize, unwrap

ARCH = dict(embed_dims=16, depth=4, num_heads=2)
DINO = """
_base_ = '{root}/configs/pretraining/dino_xcit_s12_16_300e.py'
arch = dict(embed_dims=16, depth=4, num_heads=2)
model = dict(
    backbone=dict(_delete_=True, type='XCiTClassifier', arch=arch, patch_size=16, in_channels=4,
        drop_path_rate=0.2),
    head=dict(out_dims=32, hidden_dims=16, bottleneck_dims=8))
numbers = dict(mean=[0.5], std=[0.25])
pipeline = [
    dict(type='LoadChannels', channels=4, skip_unreadable=True),
    dict(type='MultiCrop', global_size=48, local_size=32, local_crops=2, **numbers),
    dict(type='PackImage')]
test_pipeline = [
    dict(type='LoadChannels', channels=4), dict(type='CenterImageCrop', size=48, **numbers),
    dict(type='PackImage')]
labeled = dict(type='LabeledFolder', data_root='{data}', pipeline=test_pipeline)
train_dataloader = dict(batch_size=4, num_workers=1, dataset=dict(
    data_root='{data}', data_prefix=dict(img_path='.'), pipeline=pipeline))
val_dataloader = dict(batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(datasets=[
        dict(data_prefix=dict(img_path='a'), role='bank', **labeled),
        dict(data_prefix=dict(img_path='b'), **labeled)]))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs={steps}, val_interval=4)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=20, eta_min=1e-6)]
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(max_keep_ckpts=-1),
    dino=dict(temp_warmup_epochs=2))
auto_scale_lr = dict(enable=False)
custom_hooks = [dict(type='ValidateFirstHook')]
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Images of four channels, as PNG, TIFF and array, in folders of classes, at any depth."""
    random = np.random.default_rng(0)
    root = tmp_path_factory.mktemp('unlabeled')
    for part in ('a', 'b'):
        for name in ('one', 'two'):
            place = root / part / name / 'deep'
            place.mkdir(parents=True)
            images = random.integers(0, 255, (3, 60, 70, 4), dtype=np.uint8)
            cv2.imwrite(str(place / '0.png'), images[0])
            cv2.imwritemulti(str(place / '1.tif'), list(images[1].transpose(2, 0, 1)))
            np.save(place / '2.npy', images[2])
    return root


@pytest.fixture(scope='module')
def undisturbed(folder, tmp_path_factory):
    """A config, and the work folder of a run of four epochs."""
    place = tmp_path_factory.mktemp('dino')
    data = shutil.copytree(folder, place / 'data')
    (data / 'broken.png').write_bytes(b'not an image')
    config = place / 'config.py'
    config.write_text(DINO.format(root=ROOT, data=data, steps=4))
    work_dir = place / 'work'
    status, printed = runs.run(work_dir, config, '--seed', '1')
    assert status == 0, printed[-3000:]
    return config, work_dir, printed


def test_a_run_names_unreadable_files_and_measures_features(undisturbed, tmp_path, capfd):
    config, work_dir, printed = undisturbed
    start = printed[: printed.index('Epoch(train)')].splitlines()
    assert len(start) < 24 and any('of them frozen' in line for line in start)
    assert 'is skipped since' not in printed
    assert printed.count('broken.png is skipped: it cannot be read.') >= 1
    assert 'are smaller than the large crops' not in printed
    # Before training, too.
    assert list(read_curves(work_dir, ['accuracy/knn'])[1]['accuracy/knn']) == [0, 4]
    assert call('check', config, '--split', 'train') == 1
    assert 'broken.png' in capfd.readouterr().out
    image = config.parent / 'data/a/one/deep/0.png'
    assert call('infer', image, '--config', config, '--checkpoint', 'none.pth') == 2
    assert 'this config is for pre-training' in capfd.readouterr().err
    metrics = tmp_path / 'metrics.json'
    checkpoint = work_dir / 'epoch_4.pth'
    assert call('test', config, checkpoint, '--json', metrics, '--work-dir', tmp_path) == 0
    assert set(json.loads(metrics.read_text())) == {'accuracy/knn', 'accuracy/linear'}


@pytest.mark.parametrize('iteration, validates, count', [(0, True, 1), (5, True, 0), (0, False, 0)])
def test_only_a_new_run_that_validates_does_so_first(iteration, validates, count):
    loop = Mock() if validates else None
    ValidateFirstHook().before_train(SimpleNamespace(iter=iteration, val_loop=loop))
    assert count == (loop.run.call_count if validates else 0)


@pytest.mark.parametrize('wrap', [dict, lambda state: dict(student={}, teacher=state)])
def test_a_backbone_alone_is_scored(undisturbed, tmp_path, wrap, capfd):
    """The published files of DINO are backbones in the authors' names."""
    config, work_dir, _ = undisturbed
    weights = recognize(unwrap(read_checkpoint(work_dir / 'epoch_4.pth'))).state
    path = tmp_path / 'published.pth'
    torch.save(wrap(to_released(weights)), path)
    scores = []
    for checkpoint in (path, work_dir / 'epoch_4.pth'):
        words = ['--json', tmp_path / 'scores.json', '--force', '--work-dir', tmp_path]
        assert call('test', config, checkpoint, *words) == 0
        scores.append(json.loads((tmp_path / 'scores.json').read_text()))
    assert scores[0] == scores[1]
    assert capfd.readouterr().out.count('into student.backbone and teacher.backbone') == 1
    model = MODELS.build(Config.fromfile(config).model)
    load_checkpoint(model, str(path))
    for branch in (model.student, model.teacher):
        for name, tensor in branch.backbone.state_dict().items():
            assert torch.equal(tensor, weights[name]), name


@pytest.mark.long
def test_a_killed_run_resumes_exactly(undisturbed, tmp_path):
    config, work_dir, _ = undisturbed
    killed = tmp_path / 'killed'
    process = runs.start(killed, config, '--seed', '1')
    assert runs.wait_for(lambda: runs.saved_step(killed) >= 1, process)
    runs.kill(process)
    assert runs.saved_step(killed) < 4
    status, printed = runs.run(killed, config, '--resume')
    assert status == 0, printed[-3000:]
    assert '[0][' not in printed, 'validated at the start, as if nothing was trained'
    runs.check_same_training(work_dir / 'epoch_4.pth', killed / 'epoch_4.pth')
    state = runs.load(killed / 'epoch_4.pth')['state_dict']
    assert state['center'].abs().max() > 0
    name = 'backbone.layers.0.xca.qkv.weight'
    assert not torch.equal(state[f'teacher.{name}'], state[f'student.{name}'])


def test_the_checkpoint_goes_into_a_detector_and_is_converted(undisturbed, tmp_path, capfd):
    """Its backbone takes the teacher; ``convert`` leaves the student and the heads out."""
    _, work_dir, _ = undisturbed
    checkpoint = work_dir / 'epoch_4.pth'
    state = runs.load(checkpoint)['state_dict']
    target = tmp_path / 'clean.safetensors'
    assert call('convert-weights', checkpoint, target) == 0
    printed = capfd.readouterr().out
    assert 'trained as DINO' in printed and 'in_channels 4' in printed
    description = runs.load(checkpoint)['meta']['xcit_mm']
    assert description['trained_as'] == 'DINO' and description['embed_dims'] == 16
    names = set(read_weights(str(target)))
    assert not any('head.' in n or n.startswith(('student', 'teacher')) for n in names)
    for source in (checkpoint, target):
        init_cfg = dict(type='Pretrained', checkpoint=str(source))
        backbone = XCiT(ARCH, in_channels=4, out_indices=(0, 1, 2, 3), init_cfg=init_cfg)
        backbone.init_weights()
        for name, tensor in backbone.state_dict().items():
            if not name.startswith('pyramid.'):
                assert torch.equal(tensor, state[f'teacher.backbone.{name}']), name


def test_three_channels_are_inflated_on_request(tmp_path):
    torch.manual_seed(0)
    rgb = XCiT(ARCH, 16, out_indices=(0, 1, 2, 3)).eval()
    torch.save(rgb.state_dict(), tmp_path / 'rgb.pth')
    checkpoint = str(tmp_path / 'rgb.pth')
    image = torch.rand(1, 1, 48, 64)
    expected = rgb(image.expand(-1, 3, -1, -1))
    for channels in (1, 2, 4, 13):
        settings = dict(in_channels=channels, out_indices=(0, 1, 2, 3))
        with pytest.raises(WeightsError, match=f'in_channels {channels} in the config, 3 in the'):
            XCiT(ARCH, 16, **settings).load_state_dict(rgb.state_dict())
        init_cfg = dict(type='PretrainedXCiT', checkpoint=checkpoint, inflate=True)
        model = XCiT(ARCH, 16, init_cfg=init_cfg, **settings).eval()
        model.init_weights()
        # Equal channels give what they give as RGB.
        for one, two in zip(model(image.expand(-1, channels, -1, -1)), expected, strict=True):
            assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    weight = torch.randn(2, 3, 3, 3)
    four = inflate(weight, 4)
    assert torch.allclose(four[:, 3], weight[:, 0] / 2) and four.shape == (2, 4, 3, 3)


def test_a_classifiers_checkpoint_is_recognized():
    state = ImageClassifier(dict(type='XCiTClassifier', arch=ARCH, num_classes=3)).state_dict()
    found = recognize(unwrap({'state_dict': state}))
    assert found.format == 'own' and not found.others
    assert {f'backbone.{name}' for name in found.state} == set(state)


@pytest.mark.parametrize(
    'setting, message',
    [
        ('color_strength=3', 'cannot be built: ValueError: color_strength must be from 0 to 2'),
        ('colour_strength=1', "unexpected keyword argument 'colour_strength'"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(setting, message, folder, tmp_path, capfd):
    data = 'train_dataloader.dataset'
    options = [f'{data}.data_root={folder}', f'{data}.data_prefix.img_path=.']
    options += [f'{data}.pipeline.1.{setting}']
    config = ROOT / 'configs/pretraining/dino_xcit_n12_16_camvid.py'
    assert call('train', config, '--work-dir', tmp_path, '--cfg-options', *options) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith('error: A data loader of the config cannot be built')
    assert message in error


@pytest.mark.parametrize('task', ['det', pytest.param('seg', marks=pytest.mark.long)])
def test_detection_and_segmentation_train_on_four_channels(task, undisturbed, small_data, tmp_path):
    """From the checkpoint of DINO, with images that are arrays of four channels."""
    data = shutil.copytree(small_data, tmp_path / 'data')
    for path in (data / dict(det='coco', seg='ade')[task]).rglob('*.jpg'):
        image = cv2.imread(str(path))
        np.save(path.with_suffix('.npy'), np.dstack([image, image.mean(axis=2).astype(np.uint8)]))
        path.unlink()
    for path in (data / 'coco').glob('annotations/*.json'):
        path.write_text(path.read_text().replace('.jpg', '.npy'))
    _, work_dir, _ = undisturbed
    init_cfg = dict(type='Pretrained', checkpoint=str(work_dir / 'epoch_4.pth'))
    cfg = Config.fromfile(runs.write_config(tmp_path, task, data, 1))
    cfg.model.backbone.update(in_channels=4, init_cfg=init_cfg)
    cfg.model.data_preprocessor.update(mean=[127.5], std=[63.75], bgr_to_rgb=False)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    dataset = cfg.train_dataloader.dataset
    dataset.pipeline[0] = dict(type='LoadChannels', channels=4)
    if task == 'seg':
        dataset.img_suffix = '.npy'
        del dataset.pipeline[4]  # PhotoMetricDistortion is for colors
        cfg.param_scheduler = []
    cfg.dump(tmp_path / 'config.py')
    words = [tmp_path / 'config.py', '--work-dir', tmp_path / 'work', '--no-validate']
    assert call('train', *words) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    stem = runs.load(checkpoint)['state_dict']['backbone.patch_embed.layers.0.conv.weight']
    assert stem.shape[1] == 4 and stem.isfinite().all()
