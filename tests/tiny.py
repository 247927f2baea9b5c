"""Tiny models for tests: backbones and classifiers, and configs of whole models on small data."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import ManagerMixin
from torch import nn

from xcit_mm.inference.predictors import build_model, class_info
from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.models.fast import is_batch_norm
from xcit_mm.models.pyramid import STRIDES
from xcit_mm_cli import main

ROOT = Path(__file__).parents[1]

# Backbones and classifiers
TINY = {
    '1 layer': dict(embed_dims=8, depth=1, num_heads=1),
    '2 layers': dict(embed_dims=16, depth=2, num_heads=2),
    '3 layers': dict(embed_dims=32, depth=3, num_heads=8),
    '4 layers': dict(embed_dims=24, depth=4, num_heads=3),
}


def backbone(arch='2 layers', patch_size=16, kind=XCiT, **options):
    """A backbone in eval mode with a level from each layer and weights like no initial ones."""
    arch = TINY.get(arch, arch) if isinstance(arch, str) else arch
    if isinstance(arch, dict):
        depth = arch['depth']
        levels = dict(out_indices=tuple(range(depth)))
        if options.get('pyramid', True):
            levels['strides'] = STRIDES[:depth]
        options = levels | options
    return randomize(kind(arch, patch_size, **options)).eval()


def classifier(arch='2 layers', num_classes=3, **options):
    """A classifier in eval mode with weights like no initial ones."""
    arch = TINY.get(arch, arch) if isinstance(arch, str) else arch
    return randomize(XCiTClassifier(arch, num_classes=num_classes, **options)).eval()


def randomize(model):
    """Give a model weights, norms and statistics of any size; the same for the same parameters.

    LayerScale, temperatures, norms and running statistics of ones and zeros would hide mistakes.
    """
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        values = torch.rand(tensor.shape, generator=generator)
        if name.endswith('num_batches_tracked'):
            values.zero_()
        elif 'temperature' in name or 'gamma' in name or name.endswith('running_var'):
            values += 0.5
        elif tensor.ndim == 1:  # biases, means, norms
            values += 0.5 if name.endswith('weight') else -0.5
        else:  # products that keep the variance of their input
            values = (2 * values - 1) * (3 / tensor[0].numel()) ** 0.5
        tensor.copy_(values)
    return model


# Configs of whole models, for tests that run the commands
# One config per head. Each exists for patch sizes 16 and 8.
HEADS = {
    'mask_rcnn': 'detection/mask_rcnn_xcit_n12_{}_3x.py',
    'faster_rcnn': 'detection/faster_rcnn_xcit_n12_{}_3x.py',
    'cascade_mask_rcnn': 'detection/cascade_mask_rcnn_xcit_s12_{}_3x.py',
    'sem_fpn': 'segmentation/sem_fpn_xcit_n12_{}_80k.py',
    'upernet': 'segmentation/upernet_xcit_n12_{}_160k.py',
}
WIDTH = 16
WIDTHS = (
    'in_channels', 'out_channels', 'feat_channels', 'fc_out_channels', 'conv_out_channels',
    'channels',
)  # fmt: skip
LOADERS_OF_A_RUN = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def shrink(model):
    """Make a model of one of our configs tiny, in place; its structure stays."""
    model.backbone.update(
        arch=dict(embed_dims=WIDTH, depth=4, num_heads=2), out_indices=(0, 1, 2, 3), init_cfg=None
    )
    for part, node in model.items():
        if part != 'backbone':
            _narrow(node)


def _narrow(node):
    if isinstance(node, (list, tuple)):
        for item in node:
            _narrow(item)
    elif isinstance(node, dict):
        for key, value in list(node.items()):
            if key in WIDTHS:
                node[key] = [WIDTH] * len(value) if isinstance(value, (list, tuple)) else WIDTH
            else:
                _narrow(value)


def short_run(task, data):
    """Settings for one step of a recipe, with its own pipelines, on data like small_data."""
    root = f'{data}/coco/' if task == 'mmdet' else f'{data}/ade'
    settings = {
        'model.backbone.init_cfg': None,
        'default_hooks.checkpoint.save_optimizer': False,
        'default_hooks.logger.interval': 1,
    }
    for loader in LOADERS_OF_A_RUN:
        settings[f'{loader}.dataset.data_root'] = root
        settings[f'{loader}.num_workers'] = 0
        settings[f'{loader}.persistent_workers'] = False
    for loader in LOADERS_OF_A_RUN[1:]:
        settings[f'{loader}.dataset.pipeline.1.scale'] = (160, 96)
    pipeline = 'train_dataloader.dataset.pipeline'
    if task == 'mmseg':
        return settings | {
            'model.data_preprocessor.size': (96, 96),
            f'{pipeline}.2.scale': (160, 96),
            f'{pipeline}.3.crop_size': (96, 96),
            'train_cfg.max_iters': 1,
            'train_cfg.val_interval': 1,
            'default_hooks.checkpoint.interval': 1,
        }
    resized, cropped = f'{pipeline}.3.transforms.0', f'{pipeline}.3.transforms.1'
    return settings | {
        'train_dataloader.dataset.indices': 2,
        f'{resized}.0.scales': [(96, 160)],
        f'{cropped}.0.scales': [(96, 160)],
        f'{cropped}.1.crop_size': (64, 90),
        f'{cropped}.2.scales': [(96, 160)],
        'val_evaluator.ann_file': f'{root}annotations/instances_val2017.json',
        'test_evaluator.ann_file': f'{root}annotations/instances_val2017.json',
        'train_cfg.max_epochs': 1,
        # After one step of training, scores are low: keep some detections at any score.
        'model.test_cfg.rcnn.score_thr': 0.0,
        'model.test_cfg.rcnn.max_per_img': 10,
    }


@functools.cache
def _recipe(head, patch_size):
    """The text of a recipe with a tiny model, as merged() makes it; DATA stands for the data."""
    cfg = Config.fromfile(ROOT / 'configs' / HEADS[head].format(patch_size))
    shrink(cfg.model)
    cfg.merge_from_dict(short_run(cfg.default_scope, 'DATA'))
    return cfg.pretty_text


def write_recipe(folder, head, patch_size, data):
    """Write one of our configs with a tiny model and a run of one step."""
    path = Path(folder) / f'{head}_{patch_size}.py'
    path.write_text(_recipe(head, patch_size).replace('DATA', str(data)))
    return path


def recipe(head, patch_size):
    """One of our configs with a tiny model."""
    return Config.fromstring(_recipe(head, patch_size), '.py')


def build(cfg):
    """The model of a config in eval mode, whose scores spread as those of trained models do.

    Random heads give every box the same score, up to rounding: then rounding decides what is found.
    """
    model = build_model(cfg)
    for name, module in model.named_modules():
        if is_batch_norm(module):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
        elif name.endswith(('fc_reg', 'rpn_reg', 'rpn_cls', 'fc_cls', 'conv_logits')):
            nn.init.normal_(module.weight, 0, 0.3)
            nn.init.normal_(module.bias, 0, 0 if name.endswith('reg') else 1)
    for layer in model.backbone.layers:
        for gamma in (layer.gamma1, layer.gamma2, layer.gamma3):
            nn.init.normal_(gamma, 0.5, 0.3)
    model.dataset_meta = class_info(cfg, None)
    return model


def write_model(folder, head, patch_size):
    """Write the config and the weights of a tiny model; return both paths, and the model."""
    path = write_recipe(folder, head, patch_size, 'data')
    model = build(recipe(head, patch_size))
    checkpoint = folder / 'weights.pth'
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, checkpoint)
    return path, checkpoint, model


BACKBONE = """
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=16, depth=4, num_heads=2), out_indices=(0, 1, 2, 3),
        init_cfg=None),
    neck=dict(in_channels=[16] * 4, out_channels=16),"""
CONFIGS = {
    'seg': """
_base_ = '{root}/configs/segmentation/sem_fpn_xcit_n12_16_80k.py'
model = dict(
    data_preprocessor=dict(size=(64, 64)),{backbone}
    decode_head=dict(in_channels=[16] * 4, channels=16))
load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
train_pipeline = [*load,
    dict(type='RandomResize', scale=(160, 64), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(64, 64)), dict(type='PackSegInputs')]
test_pipeline = [load[0], dict(type='Resize', scale=(160, 64), keep_ratio=True), load[1],
    dict(type='PackSegInputs')]
train_cfg = dict(max_iters=1, val_interval=1)
data_root = '{data}/ade'
""",
    'det': """
_base_ = '{root}/configs/detection/mask_rcnn_xcit_n12_16_3x.py'
model = dict({backbone}
    rpn_head=dict(in_channels=16, feat_channels=16),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=16),
        bbox_head=dict(in_channels=16, fc_out_channels=16),
        mask_roi_extractor=dict(out_channels=16),
        mask_head=dict(in_channels=16, conv_out_channels=16, num_convs=1)),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(max_per_img=5)))
load = [dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
train_pipeline = [*load, dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs')]
test_pipeline = [load[0], dict(type='Resize', scale=(64, 64), keep_ratio=True), load[1],
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]
train_cfg = dict(max_epochs=1)
data_root = '{data}/coco/'
val_evaluator = dict(ann_file='{data}/coco/annotations/instances_val2017.json')
test_evaluator = val_evaluator
""",
}
LOADERS = """
options = dict(num_workers=0, persistent_workers=False, batch_size=1)
train_dataloader = dict(
    dataset=dict(data_root=data_root, pipeline=train_pipeline, filter_cfg={filter_cfg}), **options)
val_dataloader = dict(dataset=dict(data_root=data_root, pipeline=test_pipeline), **options)
test_dataloader = val_dataloader
"""


@functools.cache
def merged(task):
    """The text of a config with all that it inherits, which is slow to resolve; {data} is left."""
    # All images, including those that mmdet's configs leave out of training.
    filter_cfg = 'dict(filter_empty_gt=False, min_size=0)' if task == 'det' else None
    text = CONFIGS[task].format(root=ROOT, data='DATA', backbone=BACKBONE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'tiny.py'
        path.write_text(text + LOADERS.format(filter_cfg=filter_cfg))
        return Config.fromfile(path).pretty_text


def write_config(folder, task, data):
    """Write the config of a detector ('det') or a segmentor ('seg') on data like small_data."""
    path = Path(folder) / f'{task}.py'
    path.write_text(merged(task).replace('DATA', str(data)))
    return path


def check_inputs(cfg):
    """Check that a config turns images into what the released weights were trained with."""
    from xcit_mm.configs import read_preprocessor

    init_default_scope(cfg.default_scope)
    prepared = read_preprocessor(MODELS.build(cfg.model.data_preprocessor))
    assert prepared.mean == pytest.approx([123.675, 116.28, 103.53])
    assert prepared.std == pytest.approx([58.395, 57.12, 57.375])
    assert prepared.channel_order == 'rgb'


def call(command, *words):
    """Run a command of xcit-mm in this process, as if no other one had run; return its status."""
    forget_runs()
    return main([command, *map(str, words)])


def check_survives_faults(cfg):
    """Check that a config has what resumes runs exactly, writes whole files and skips bad steps."""
    hooks = {hook.type for hook in cfg.default_hooks.values()}
    assert {'AtomicCheckpointHook', 'ExactResumeHook', 'NonFiniteHook'} <= hooks
    assert cfg.train_dataloader.sampler.type.startswith('Seeded')
    assert cfg.train_dataloader.batch_sampler.type == 'SeededBatchSampler'


def forget_runs():
    """Forget loggers and visualizers: mmengine keeps those of the first run in a process."""
    kinds = [ManagerMixin]
    for kind in kinds:
        kinds += kind.__subclasses__()
        kind._instance_dict.clear()
