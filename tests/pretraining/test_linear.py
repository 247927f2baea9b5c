"""DINO's linear protocol: the closed form of its steps, its recipe, and the published heads."""

import math

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from mmengine.structures import BaseDataElement
from torch.nn import functional as F

from tests.tiny import ROOT, randomize
from tests.weights.test_formats import to_released
from xcit_mm.models import XCiTClassifier
from xcit_mm.weights import CheckpointError, published

ARCH = dict(embed_dims=16, depth=2, num_heads=2)
CLASSES = 5
CONFIGS = sorted((ROOT / 'configs/pretraining').glob('linear_*.py'))


def classifier(**settings):
    backbone = dict(type='XCiTClassifier', arch=ARCH, num_classes=CLASSES, drop_path_rate=0.5)
    return MODELS.build(dict(type='LinearClassifier', backbone=backbone, **settings))


def features_of(model, images):
    """The class token that the head gets, from the same network without one."""
    bare = XCiTClassifier(ARCH, num_classes=0).to(images.dtype).eval()
    state = model.backbone.state_dict()
    bare.load_state_dict({k: v for k, v in state.items() if not k.startswith('head.')})
    with torch.no_grad():
        return bare(images)


def test_steps_are_the_closed_form_and_the_network_stays():
    """SGD with momentum on (softmax - one-hot) x features; nothing else changes, not even norms."""
    random = torch.Generator().manual_seed(0)
    model = randomize(classifier()).double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cfg = Config.fromfile(CONFIGS[0])
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    rate, momentum = 1e-3, 0.9
    weight, bias = (before[f'backbone.head.{kind}'].clone() for kind in ('weight', 'bias'))
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for _ in range(3):
        images = torch.randn(4, 3, 32, 48, generator=random, dtype=torch.float64)
        labels = torch.randint(CLASSES, (4,), generator=random)
        samples = [BaseDataElement(gt_label=label) for label in labels]
        loss, _ = model.parse_losses(model(images, samples, mode='loss'))
        wrapper.update_params(loss)
        features = features_of(model, images)
        error = (features @ weight.T + bias).softmax(dim=1) - F.one_hot(labels, CLASSES)
        gradients = [error.T @ features / 4, error.mean(dim=0)]
        speed = [momentum * v + g for v, g in zip(speed, gradients, strict=True)]
        weight, bias = weight - rate * speed[0], bias - rate * speed[1]
    after = model.state_dict()
    assert torch.allclose(after['backbone.head.weight'], weight, rtol=1e-12, atol=1e-14)
    assert torch.allclose(after['backbone.head.bias'], bias, rtol=1e-12, atol=1e-14)
    assert not torch.equal(weight, before['backbone.head.weight'])
    for name, tensor in after.items():
        assert '.head.' in name or torch.equal(tensor, before[name]), name


def write_published(folder):
    """A network and a head as their authors publish them; return both paths and the tensors."""
    network = randomize(XCiTClassifier(ARCH, num_classes=0)).eval()
    torch.save(to_released(network.state_dict()), folder / 'network.pth')
    random = torch.Generator().manual_seed(1)
    head = torch.randn(CLASSES, 16, generator=random), torch.randn(CLASSES, generator=random)
    names = ('module.linear.weight', 'module.linear.bias')
    content = dict(epoch=100, state_dict=dict(zip(names, head, strict=True)), best_acc=77.8)
    torch.save(content, folder / 'linear.pth')
    return network, head


def test_a_published_head_completes_a_published_network(tmp_path):
    network, (weight, bias) = write_published(tmp_path)
    model = classifier(linear_weights=str(tmp_path / 'linear.pth')).eval()
    model.load_state_dict(torch.load(tmp_path / 'network.pth'))
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = network(images) @ weight.T + bias
        assert torch.allclose(model(images), expected, rtol=1e-5, atol=1e-5)
    # A file that has a head keeps it.
    own = randomize(classifier())
    model.load_state_dict(own.state_dict())
    assert torch.equal(model.backbone.head.weight, own.backbone.head.weight)


def test_a_file_that_is_no_head_is_refused(tmp_path):
    write_published(tmp_path)
    model = classifier(linear_weights=str(tmp_path / 'network.pth'))
    with pytest.raises(CheckpointError, match='must have the weight and the bias'):
        model.load_state_dict(torch.load(tmp_path / 'network.pth'))


def test_the_head_starts_as_in_dino():
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type='LinearClassifier',
            backbone=dict(type='XCiTClassifier', arch=dict(ARCH, embed_dims=64), num_classes=1000),
        )
    )
    model.init_weights()
    head = model.backbone.head
    # 64,000 draws: their deviation is that of the distribution to 1 / sqrt(2 n), five times over.
    assert head.weight.std().item() == pytest.approx(0.01, rel=5 / math.sqrt(2 * 64_000))
    assert not head.bias.any()


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_the_recipe_is_dinos(path):
    pytest.importorskip('timm')
    from xcit_mm.pretraining import TimmTransform

    cfg = Config.fromfile(path)
    arch, patch = cfg.model.backbone.arch, cfg.model.backbone.patch_size
    assert path.stem == f'linear_xcit_{arch}_{patch}_100e'
    checkpoint = cfg.model.backbone.init_cfg.checkpoint
    assert checkpoint == f'xcit://dino/{arch}/{patch}'
    size = published()[checkpoint.removeprefix('xcit://')].split('xcit_')[1].split('_cp')[0]
    assert cfg.model.linear_weights.endswith(f'/dino_xcit_{size}_p{patch}_linearweights.pth')
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum) == ('SGD', 1e-3, 0.9)
    assert optimizer.weight_decay == 0 and 'paramwise_cfg' not in cfg.optim_wrapper
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=256)
    assert cfg.train_cfg.max_epochs == 100 and cfg.train_dataloader.batch_size == 128
    train, test = (cfg[f'{n}_dataloader'].dataset.pipeline[0] for n in ('train', 'test'))
    steps = {
        key: TimmTransform(**{k: v for k, v in cfg_.items() if k != 'type'}).transform.transforms
        for key, cfg_ in (('train', train), ('test', test))
    }
    names = {key: [type(step).__name__ for step in found] for key, found in steps.items()}
    assert names['train'][:2] == ['RandomResizedCropAndInterpolation', 'RandomHorizontalFlip']
    assert not {'ColorJitter', 'RandAugment', 'RandomErasing'} & set(names['train'])
    crop, flip = steps['train'][:2]
    assert (tuple(crop.scale), tuple(crop.ratio)) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert tuple(crop.size) == (224, 224) and flip.p == 0.5
    assert (test.input_size, test.crop_pct, test.interpolation) == (224, 0.875, 'bicubic')


def test_the_rate_falls_along_a_cosine_of_epochs():
    cfg = Config.fromfile(CONFIGS[0])
    init_default_scope(cfg.default_scope)
    (settings,) = cfg.param_scheduler
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3 * 1024 / 256)
    scheduler = PARAM_SCHEDULERS.build(settings, default_args=dict(optimizer=optimizer))
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        scheduler.step()
    expected = 4e-3 * 0.5 * (1 + np.cos(np.pi * np.arange(100) / 100))
    assert rates == pytest.approx(expected, rel=1e-9)
