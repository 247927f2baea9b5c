"""Training and testing classifiers through the commands, and what they say about bad input."""

import json
import shutil

import cv2
import numpy as np
import pytest
import torch

from tests.tiny import ROOT, call
from xcit_mm.models import XCiTClassifier
from xcit_mm.weights import read_checkpoint

pytest.importorskip('timm')

CLASSIFIER = """
_base_ = '{root}/configs/classification/xcit_n12_16_in1k.py'
model = dict(backbone=dict(_delete_=True, type='XCiTClassifier', num_classes=3,
    arch=dict(embed_dims=16, depth=2, num_heads=2)))
train_dataloader = dict(batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(data_root='{data}'))
val_dataloader = dict(batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(data_root='{data}'))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs={epochs})
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=10, eta_min=1e-5)]
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=1)
"""
SMALL = [
    '--cfg-options',
    'train_dataloader.dataset.pipeline.0.input_size=32',
    'val_dataloader.dataset.pipeline.0.input_size=32',
]


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Three classes of colored noise in ImageNet's layout, with folders below the classes."""
    random = np.random.default_rng(0)
    root = tmp_path_factory.mktemp('images')
    for split in ('train', 'val'):
        for number, name in enumerate(('blue', 'green', 'red')):
            folder = root / split / name / 'deeper'
            folder.mkdir(parents=True)
            for index in range(3):
                image = random.integers(0, 120, (40, 50, 3), dtype=np.uint8)
                image[..., number] += 120
                cv2.imwrite(str(folder / f'{index}.png'), image)
    return root


@pytest.fixture
def config(images, tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(CLASSIFIER.format(root=ROOT, data=images, epochs=1))
    return path


def test_a_classifier_trains_and_is_tested(config, tmp_path, capfd):
    work_dir = tmp_path / 'work'
    assert call('train', config, '--work-dir', work_dir, *SMALL) == 0
    checkpoint = work_dir / 'epoch_1.pth'
    metrics = tmp_path / 'metrics.json'
    status = call('test', config, checkpoint, '--eval', 'top1', 'top5', '--json', metrics,
        '--out', tmp_path / 'out.pkl', '--work-dir', tmp_path / 'test', '--cfg-options',
        'test_dataloader.dataset.pipeline.0.input_size=48',
        'test_dataloader.dataset.pipeline.0.crop_pct=0.875',
    )  # fmt: skip
    assert status == 0
    assert json.loads(metrics.read_text())['accuracy/top5'] == 100.0
    assert (tmp_path / 'out.pkl').is_file()
    capfd.readouterr()
    assert call('test', config, checkpoint, '--show') == 2
    assert '--show' in capfd.readouterr().err
    assert call('test', config, checkpoint, '--tta') == 2
    assert call('test', config, checkpoint, '--eval', 'mIoU') == 2
    assert 'top1, top5' in capfd.readouterr().err


def test_averaged_weights_and_clipping_are_options(config, tmp_path):
    """What docs/pretraining.md says turns them on: the average is the closed form."""
    options = ['default_hooks.ema.type=EMAHook', 'default_hooks.ema.momentum=0.25']
    options += ['default_hooks.ema.update_buffers=True', 'optim_wrapper.clip_grad.max_norm=0.5']
    options += ['default_hooks.checkpoint.by_epoch=False', 'train_cfg.max_epochs=2']
    options += ['default_hooks.checkpoint.max_keep_ckpts=-1', 'optim_wrapper.optimizer.lr=1.0']
    words = ['--work-dir', tmp_path / 'work', '--no-validate', *SMALL, *options]
    assert call('train', config, *words) == 0
    files = sorted((tmp_path / 'work').glob('iter_*.pth'))
    assert len(files) == 4
    average = None
    for file in files:
        content = read_checkpoint(file)
        current = content['ema_state_dict']  # mmengine swaps them: files are for use
        for name, tensor in content['state_dict'].items():
            now = current[f'module.{name}']
            if average is not None:
                now = 0.75 * average[name] + 0.25 * now
            is_count = not tensor.is_floating_point()
            assert is_count or torch.allclose(tensor, now, rtol=1e-5, atol=1e-7), name
        average = content['state_dict']
    weight = 'backbone.head.weight'  # has moved by more than the tolerance
    assert not torch.allclose(average[weight], current[f'module.{weight}'], rtol=1e-2)
    lines = (tmp_path / 'work').glob('*/vis_data/scalars.json')
    records = [json.loads(line) for file in lines for line in file.read_text().splitlines()]
    assert all(record['grad_norm'] > 0 for record in records) and records


def test_a_published_file_is_verified_with_one_command(config, images, tmp_path):
    """A file of a classifier alone gets the accuracy that its own network has."""
    from timm.data import create_transform
    from timm.models.xcit import Xcit

    torch.manual_seed(3)
    network = Xcit(img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2, num_classes=3,
                   eta=1.0, tokens_norm=True).eval()  # fmt: skip
    torch.save({'model': network.state_dict()}, tmp_path / 'published.pth')
    from PIL import Image

    transform = create_transform(32, interpolation='bicubic', crop_pct=0.9)
    right = []
    for label, name in enumerate(('blue', 'green', 'red')):
        for path in (images / 'val' / name).rglob('*.png'):
            with torch.no_grad():
                scores = network(transform(Image.open(path).convert('RGB'))[None])
            right.append(int(scores.argmax()) == label)
    status = call('test', config, tmp_path / 'published.pth', '--eval', 'top1',
        '--json', tmp_path / 'm.json', '--work-dir', tmp_path / 'test', '--cfg-options',
        'test_dataloader.dataset.pipeline.0.input_size=32',
        'test_dataloader.dataset.pipeline.0.crop_pct=0.9',
    )  # fmt: skip
    assert status == 0
    found = json.loads((tmp_path / 'm.json').read_text())
    assert found == {'accuracy/top1': pytest.approx(100 * np.mean(right))}


def test_transfer_drops_the_head_of_the_file(config, tmp_path):
    arch = dict(embed_dims=16, depth=2, num_heads=2)
    torch.manual_seed(3)
    source = XCiTClassifier(arch, num_classes=9)
    torch.save(source.state_dict(), tmp_path / 'source.pth')
    init = dict(type='PretrainedXCiT', checkpoint=str(tmp_path / 'source.pth'), head=False)
    model = XCiTClassifier(arch, num_classes=3, init_cfg=init)
    model.init_weights()
    for name, tensor in model.state_dict().items():
        if name.startswith('head.'):
            assert len(tensor) == 3
        else:
            assert torch.equal(tensor, source.state_dict()[name]), name


def rename_red(data):
    (data / 'val' / 'red').rename(data / 'val' / 'pink')


def no_images(data):
    shutil.rmtree(data / 'train')
    (data / 'train' / 'blue').mkdir(parents=True)


# what is wrong with the data or the settings, and a part of the message
BAD_INPUT = [
    ('train_dataloader.batch_size=3', 'batch_size must be even, and it is 3'),
    ('train_dataloader.batch_size=100', 'There are 9 images for training, which is less than one'),
    ('model.backbone.num_classes=2', 'model = dict(backbone=dict(num_classes=3))'),
    ('train_cfg.max_iters=3', 'Loops by epoch have max_epochs, loops by iteration have max_iters'),
    (
        'model.teacher.name=regnety_160.deit_in1k',
        'The weights of the teacher regnety_160.deit_in1k are not available',
    ),
    ('model.teacher.name=a model.teacher.checkpoint=none.pth', 'there is no checkpoint'),
    (rename_red, 'they differ in pink, red'),
    (no_images, 'has no images in folders of classes'),
    (lambda data: shutil.rmtree(data / 'train'), 'The dataset is missing'),
]


@pytest.mark.parametrize('wrong, message', BAD_INPUT)
def test_bad_input_gets_one_paragraph(wrong, message, images, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    data, config = shutil.copytree(images, tmp_path / 'data'), tmp_path / 'config.py'
    config.write_text(CLASSIFIER.format(root=ROOT, data=data, epochs=1))
    options = wrong.split() if isinstance(wrong, str) else []
    if not options:
        wrong(data)
    assert call('train', config, '--work-dir', tmp_path / 'work', *SMALL, *options) == 2
    error = capfd.readouterr().err
    assert message in error[error.rindex('error: ') :] and 'Traceback' not in error


def test_multi_scale_training_shows_images_of_several_sizes(config, tmp_path, monkeypatch):
    seen = []
    forward = XCiTClassifier.forward

    def record(self, images):
        seen.append((self.training, *images.shape[2:]))
        return forward(self, images)

    monkeypatch.setattr(XCiTClassifier, 'forward', record)
    options = ['train_cfg.max_epochs=4', 'model.data_preprocessor.sizes=[16,32]',
        'model.data_preprocessor.type=MultiScalePreprocessor']  # fmt: skip
    assert call('train', config, '--work-dir', tmp_path / 'work', *SMALL, *options) == 0
    assert set(seen) == {(True, 16, 16), (True, 32, 32), (False, 32, 32)}
