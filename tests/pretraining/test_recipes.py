"""The recipes of classification and DINO: every config, its milestones and parameter groups."""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope

from tests.tiny import ROOT, check_survives_faults
from xcit_mm.compat import revert_sync_bn
from xcit_mm.engine import SeededRepeatSampler
from xcit_mm.models import VARIANTS

pytest.importorskip('timm')
FOLDER = ROOT / 'configs/classification'
CONFIGS = sorted([*FOLDER.glob('*.py'), *(ROOT / 'configs/pretraining').glob('*.py')])
KINDS = ('in1k', 'in1k_dist', 'in1k_dist_384')
TRANSFER = dict(cifar10=10, cifar100=100, flowers=102, cars=196, inat18=8142, inat19=1010)
# The paper's, and S12 for small machines.
TRANSFER_SIZES = ('s12', 's24', 'm24', 'l24')


def test_every_size_has_its_configs():
    sizes = [f'xcit_{arch}_{patch}' for arch in VARIANTS for patch in (16, 8)]
    wanted = {f'{size}_{kind}' for size in sizes for kind in KINDS}
    wanted |= {f'xcit_{arch}_16_{name}' for arch in TRANSFER_SIZES for name in TRANSFER}
    wanted |= {'xcit_n12_8_shapes', 'xcit_s12_16_in1k_ms'}
    assert {path.stem for path in FOLDER.glob('*.py')} == wanted


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_config_matches_its_name_and_survives_faults(path):
    cfg = Config.fromfile(path)
    check_survives_faults(cfg)
    backbone = cfg.model.backbone
    arch, patch, kind = path.stem.partition('xcit_')[2].split('_', 2)
    assert (backbone.arch, backbone.patch_size) == (arch, int(patch))
    if kind not in KINDS:
        return
    assert 'drop_path_rate' not in backbone and 'layer_scale_init' not in backbone
    assert ('teacher' in cfg.model) == ('dist' in kind)
    size = 384 if '384' in kind else 224
    pipelines = [cfg[f'{s}_dataloader'].dataset.pipeline for s in ('train', 'val', 'test')]
    assert [pipeline[0].input_size for pipeline in pipelines] == [size] * 3
    if size == 384:
        assert backbone.init_cfg.checkpoint == f'xcit://{arch}/{patch}/224_dist'


@pytest.mark.parametrize('arch', TRANSFER_SIZES)
@pytest.mark.parametrize('name', TRANSFER)
def test_transfer_configs_have_their_classes_and_folders(name, arch):
    cfg = Config.fromfile(FOLDER / f'xcit_{arch}_16_{name}.py')
    assert cfg.model.backbone.num_classes == TRANSFER[name]
    loaders = (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader)
    assert {loader.dataset.data_root for loader in loaders} == {f'data/{name}'}
    assert cfg.model.backbone.init_cfg == dict(
        type='PretrainedXCiT', checkpoint=f'xcit://{arch}/16/224_dist', head=False
    )


def test_multi_scale_training_crops_images_of_the_largest_size():
    cfg = Config.fromfile(FOLDER / 'xcit_s12_16_in1k_ms.py')
    pipelines = [cfg[f'{s}_dataloader'].dataset.pipeline for s in ('train', 'val', 'test')]
    assert [pipeline[0].input_size for pipeline in pipelines] == [320, 224, 224]
    sizes = cfg.model.data_preprocessor.sizes
    assert max(sizes) == 320 and all(size % 16 == 0 for size in sizes)


@pytest.mark.parametrize(
    'path', sorted((FOLDER / 'imagenet_v2').glob('*.py')), ids=lambda p: p.stem
)
def test_imagenet_v2_differs_from_imagenet_in_its_folder_and_its_name_alone(path):
    cfg, base = Config.fromfile(path), Config.fromfile(FOLDER / path.name)
    assert cfg.test_dataloader.dataset.data_root == 'data/imagenet_v2'
    assert cfg.test_dataloader.dataset.data_prefix.img_path == '.'
    assert cfg.test_evaluator == dict(**base.test_evaluator, prefix='imagenet_v2')
    cfg.test_dataloader.dataset.update(data_root='data/imagenet', data_prefix=dict(img_path='val'))
    for key in ('model', 'val_dataloader', 'val_evaluator', 'test_dataloader', 'train_dataloader'):
        assert cfg[key] == base[key]


def build(name):
    """A config and its model, without memory for the weights."""
    cfg = Config.fromfile(FOLDER / f'{name}.py')
    init_default_scope(cfg.default_scope)
    revert_sync_bn(cfg)
    with torch.device('meta'):
        return cfg, MODELS.build(cfg.model)


def test_the_recipe_is_deits():
    cfg, model = build('xcit_s12_16_in1k')
    train = cfg.train_dataloader
    augment = train.dataset.pipeline[0]
    assert augment.auto_augment == 'rand-m9-mstd0.5-inc1'
    assert (augment.re_prob, augment.re_mode) == (0.25, 'pixel')
    assert augment.interpolation == 'bicubic'
    assert train.sampler == dict(type='SeededRepeatSampler', repeats=3)
    mixup = model.mixup
    assert (mixup.mixup_alpha, mixup.cutmix_alpha, mixup.label_smoothing) == (0.8, 1.0, 0.1)
    assert (mixup.mix_prob, mixup.switch_prob, mixup.mode) == (1.0, 0.5, 'batch')
    assert cfg.train_cfg.max_epochs == 400
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=512)
    assert model.backbone.drop_path_rate == VARIANTS['s12'].drop_path_rate
    assert {step.__class__.__name__ for step in pipeline_of(augment)} >= {
        'RandomResizedCropAndInterpolation', 'RandAugment', 'RandomErasing', 'Normalize',
    }  # fmt: skip


def pipeline_of(settings):
    from xcit_mm.pretraining import TimmTransform

    settings = {key: value for key, value in settings.items() if key != 'type'}
    return TimmTransform(**settings).transform.transforms


def test_learning_rates_at_the_milestones():
    """For 1,024 images: 1e-3, from 1e-6 over 5 epochs, down to 1e-5 after 400."""
    cfg = Config.fromfile(FOLDER / 'xcit_s12_16_in1k.py')
    length, batch = 10, 1024
    rate = cfg.optim_wrapper.optimizer.lr * batch / cfg.auto_scale_lr.base_batch_size
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    init_default_scope(cfg.default_scope)
    schedulers = []
    for settings in cfg.param_scheduler:
        kind = PARAM_SCHEDULERS.get(settings.type)
        arguments = {k: v for k, v in settings.items() if k not in ('type', 'by_epoch')}
        arguments.pop('convert_to_iter_based')
        built = kind.build_iter_from_epoch(
            optimizer=optimizer, by_epoch=True, epoch_length=length, **arguments
        )
        schedulers.append(built)
    rates = []
    for _ in range(400 * length):
        rates.append(optimizer.param_groups[0]['lr'])
        for scheduler in schedulers:
            scheduler.step()
    assert rates[0] == pytest.approx(1e-6)
    assert rates[5 * length] == pytest.approx(1e-3, rel=1e-3) == max(rates)
    middle = (5 + 400) * length // 2
    assert rates[middle] == pytest.approx((1e-3 + 1e-5) / 2, rel=1e-2)
    assert rates[-1] == pytest.approx(1e-5, rel=1e-3)


def test_parameter_groups_are_deits():
    """No weight decay for parameters of one dimension and the class token; 0.05 for others."""
    from timm.optim import param_groups_weight_decay

    cfg, model = build('xcit_n12_16_in1k')
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    ours = {id(p): g['weight_decay'] for g in wrapper.optimizer.param_groups for p in g['params']}
    timms = param_groups_weight_decay(
        model, 0.05, no_weight_decay_list=['backbone.cls_token', 'cls_token']
    )
    theirs = {id(p): g['weight_decay'] for g in timms for p in g['params']}
    assert ours == theirs and set(ours.values()) == {0.0, 0.05}
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {names[i] for i, decay in ours.items() if decay}
    assert 'backbone.layers.0.xca.temperature' in decayed
    assert not any(n.endswith(('.bias', 'gamma1', 'cls_token', 'norm1.weight')) for n in decayed)


@pytest.mark.parametrize('count, processes', [(600, 1), (600, 4), (1000, 3), (40, 2)])
def test_repeated_augmentation_is_timms(count, processes, monkeypatch):
    from timm.data.distributed_sampler import RepeatAugSampler

    data, seen = list(range(count)), []
    for rank in range(processes):
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda r=rank: (r, processes))
        ours = SeededRepeatSampler(data, seed=0)
        ours.set_epoch(3)
        theirs = RepeatAugSampler(data, num_replicas=processes, rank=rank)
        theirs.set_epoch(3)
        indices = list(ours)
        seen += [index.key for index in indices]
        if count >= 256:
            assert [int(index) for index in indices] == list(theirs)
        assert len(ours) == len(indices) == (count // 256 * 256 or count) // processes
    assert len(set(seen)) == len(seen)  # every copy is augmented differently


@pytest.mark.parametrize('arch', ['s12', 'm24'])
@pytest.mark.parametrize('patch', [16, 8])
def test_configs_are_those_of_vissl(arch, patch):
    cfg = Config.fromfile(ROOT / f'configs/pretraining/dino_xcit_{arch}_{patch}_300e.py')
    assert (cfg.model.backbone.arch, cfg.model.backbone.patch_size) == (arch, patch)
    assert cfg.train_cfg.max_epochs == 300
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=256)
    assert cfg.optim_wrapper.optimizer.lr == {'s12': 5e-4, 'm24': 2.5e-4}[arch]
    # VISSL has no config of S12/8, which follows that of S12/16.
    batch, small_crops, border = (10, 6, 0.32) if (arch, patch) == ('m24', 8) else (None, 8, 0.3)
    assert cfg.train_dataloader.batch_size == (batch or {'s12': 64, 'm24': 32}[arch])
    crops = cfg.train_dataloader.dataset.pipeline[1]
    assert (crops.global_size, crops.local_size, crops.local_crops) == (224, 96, small_crops)
    assert (crops.global_scale, crops.local_scale) == ((border, 1.0), (0.05, border))
    warm_up, decay = cfg.param_scheduler
    assert (warm_up.end, decay.begin, decay.end, decay.eta_min) == (10, 10, 300, 1e-5)
    rate = cfg.model.backbone.get('drop_path_rate', VARIANTS[arch].drop_path_rate)
    assert rate == {'s12': 0.05, 'm24': 0.15}[arch]
    assert cfg.model.head.norm_last_layer is False
    hook = cfg.default_hooks.dino
    assert (hook.teacher_temp, hook.temp_warmup_epochs) == ((0.04, 0.07), 30)
