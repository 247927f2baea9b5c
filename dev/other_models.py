"""``python -m dev.other_models``: tries XCiT in the models of mmdet and mmseg.

Each model comes from a config of the installed library. Its backbone is replaced by a small XCiT
with the config that docs/backbone.md shows and the changes of its row in the table there. It must
give a finite loss, a gradient to every parameter of the backbone, and a prediction. The script
writes the table.
"""

import argparse
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from dev.pages import write_between_marks
from xcit_mm.compat import revert_sync_bn
from xcit_mm.tables import format_table

PAGE = Path(__file__).parents[1] / 'docs' / 'backbone.md'
# The marks of the table on it.
MARKS = 'other models'
# The first config of the page is this one, for RetinaNet.
CONFIG = """\
_base_ = '{base}'
custom_imports = dict(imports=['xcit_mm'])
d = {width}  # width of all levels
model = dict(
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
    ),
    backbone=dict(
        _delete_=True,
        type='XCiT',
        arch={arch!r},
        patch_size=16,
        init_cfg={init_cfg},
        {backbone},
    ),
    {others},
)
"""
OPTIMIZER = """\
no_decay = dict(decay_mult=0.0)
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', {rate}),
    paramwise_cfg=dict(custom_keys={{'norm1': no_decay, 'norm2': no_decay, 'norm3': no_decay}}),
)
"""
# For schedules that end at a fixed rate: the last rate for SGD is not below the first for AdamW.
SCHEDULE = """\
param_scheduler = [
    dict(rule, eta_min=5e-6) if 'eta_min' in rule else rule for rule in _base_.param_scheduler
]
"""
DETECTION, SEGMENTATION = 'lr=1e-4, weight_decay=0.05', 'lr=6e-5, weight_decay=0.01'
# Narrow, but as deep as the paper's: the same layers are the features.
ARCH = dict(embed_dims=32, depth=12, num_heads=4)
SIZE = 128


class Change(NamedTuple):
    """What it takes to put XCiT into some models.

    Args:
        backbone (str): Arguments of the backbone besides its size.
        others (str): What else changes in ``model``; ``d`` is the width of the backbone.
        bases (dict[str, str]): The config that each model is based on, by its common name.
        rate (str): Arguments of AdamW; empty if the base has it already.
        schedule (bool): Whether the base has a schedule that ends at a fixed rate.
    """

    backbone: str
    others: str
    bases: dict[str, str]
    rate: str = ''
    schedule: bool = False


CHANGES = (
    Change(
        'strides=(8, 16, 32)',
        'neck=dict(in_channels=[d] * 3, start_level=0)',
        {
            'RetinaNet': 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
            'FCOS': 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
            'ATSS': 'mmdet::atss/atss_r50_fpn_1x_coco.py',
            'GFL': 'mmdet::gfl/gfl_r50_fpn_1x_coco.py',
        },
        DETECTION,
    ),
    Change(
        'strides=(8, 16, 32)',
        'neck=dict(in_channels=[d] * 3)',
        {
            'RTMDet': 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
            'YOLOX': 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py',
        },
        DETECTION,
        schedule=True,
    ),
    Change(
        'strides=(8, 16, 32)',
        'neck=dict(in_channels=[d] * 3)',
        {
            'Deformable DETR': 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
            'DINO': 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py',
        },
    ),
    Change(
        'strides=(32,)',
        'neck=dict(in_channels=[d])',
        {'DETR': 'mmdet::detr/detr_r50_8xb2-150e_coco.py'},
    ),
    Change(
        '',
        'neck=dict(in_channels=[d] * 4)',
        {
            'Faster R-CNN': 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
            'Mask R-CNN': 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
            'Cascade Mask R-CNN': 'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
            'HTC': 'mmdet::htc/htc_r50_fpn_1x_coco.py',
            'PointRend': 'mmdet::point_rend/point-rend_r50-caffe_fpn_ms-1x_coco.py',
            'SOLOv2': 'mmdet::solov2/solov2_r50_fpn_1x_coco.py',
            'Panoptic FPN': 'mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
        },
        DETECTION,
    ),
    Change(
        '',
        'neck=dict(in_channels=[d] * 4)',
        {'Sparse R-CNN': 'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py'},
    ),
    Change(
        '',
        'panoptic_head=dict(in_channels=[d] * 4)',
        {'Mask2Former': 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py'},
    ),
    Change(
        '',
        'decode_head=dict(in_channels=[d] * 4)',
        {
            'SegFormer': 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
            'Mask2Former': 'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
        },
    ),
    Change(
        '',
        'pretrained=None, decode_head=dict(in_channels=[d] * 4), '
        'auxiliary_head=dict(in_channels=d)',
        {'UPerNet': 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'},
        SEGMENTATION,
        schedule=True,
    ),
    Change(
        '',
        'pretrained=None, neck=dict(in_channels=[d] * 4)',
        {'PointRend': 'mmseg::point_rend/pointrend_r50_4xb4-160k_ade20k-512x512.py'},
        SEGMENTATION,
        schedule=True,
    ),
    Change(
        'strides=(4, 8, 16)',
        'pretrained=None, decode_head=dict(in_channels=d, in_index=2, c1_in_channels=d), '
        'auxiliary_head=dict(in_channels=d, in_index=1)',
        {
            'DeepLabV3+': 'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py',
        },
        SEGMENTATION,
        schedule=True,
    ),
    Change(
        'pyramid=False',
        'pretrained=None, decode_head=dict(in_channels=d), auxiliary_head=dict(in_channels=d)',
        {
            'FCN': 'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py',
            'PSPNet': 'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
        },
        SEGMENTATION,
        schedule=True,
    ),
    Change(
        'pyramid=False',
        'pretrained=None, '
        'decode_head=[dict(head, in_channels=d) for head in _base_.model.decode_head]',
        {'OCRNet': 'mmseg::ocrnet/ocrnet_r101-d8_8xb2-40k_cityscapes-512x1024.py'},
        SEGMENTATION,
        schedule=True,
    ),
    Change(
        'pyramid=False',
        'decode_head=dict(in_channels=d), '
        'auxiliary_head=[dict(head, in_channels=d) for head in _base_.model.auxiliary_head]',
        {'SETR': 'mmseg::setr/setr_vit-l_naive_8xb2-160k_ade20k-512x512.py'},
        SEGMENTATION,
        schedule=True,
    ),
)
# All configs, with their changes and their common names.
BASES = {base: (change, name) for change in CHANGES for name, base in change.bases.items()}


def config_text(
    base: str, arch: str | dict[str, int], width: int, checkpoint: str | None = None
) -> str:
    """Return the config of a row of the table, as the page puts it together.

    Args:
        base (str): One of :data:`BASES`.
        arch (str or dict): The size of the backbone.
        width (int): Its ``embed_dims``.
        checkpoint (str, optional): Its weights. Defaults to None.
    """
    change, _ = BASES[base]
    init_cfg = f"dict(type='Pretrained', checkpoint='{checkpoint}')" if checkpoint else None
    settings = dict(base=base, width=width, arch=arch, init_cfg=init_cfg)
    text = CONFIG.format(**settings, backbone=change.backbone, others=change.others)
    if not change.backbone:
        text = text.replace('        ,\n', '')
    if change.rate:
        text += OPTIMIZER.format(rate=change.rate)
    return text + SCHEDULE if change.schedule else text


def load(base: str) -> Config:
    """Return a config with XCiT in it, small enough for a CPU.

    Args:
        base (str): One of :data:`BASES`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'config.py'
        path.write_text(config_text(base, ARCH, ARCH['embed_dims']), encoding='utf-8')
        cfg = Config.fromfile(path)
    revert_sync_bn(cfg)
    _shrink(cfg.model)
    return cfg


def _shrink(model: dict[str, Any]) -> None:
    """Work on few boxes, and on images as small as they come."""
    model['data_preprocessor'].pop('batch_augments', None)
    if 'size' in model['data_preprocessor']:
        model['data_preprocessor']['size'] = (SIZE, SIZE)
    if 'num_queries' in model:
        model['num_queries'] = 100  # as many as detections, fewer than tokens
    train_cfg, test_cfg = model.get('train_cfg') or {}, model.get('test_cfg') or {}
    for proposals in (train_cfg.get('rpn_proposal'), test_cfg.get('rpn'), test_cfg.get('rcnn')):
        if proposals and 'max_per_img' in proposals:
            proposals['max_per_img'] = min(proposals['max_per_img'], 50)


def batch_for(cfg: Config) -> dict[str, Any]:
    """Return two random images with the annotations that the pipeline of a config would load."""
    if cfg.default_scope == 'mmseg':
        return _segmentation_batch()
    from mmdet.testing import demo_mm_inputs

    settings = {k: v for step in cfg.train_pipeline for k, v in step.items()}
    is_panoptic = any('Panoptic' in step['type'] for step in cfg.train_pipeline)
    return demo_mm_inputs(
        image_shapes=(3, SIZE, SIZE),
        num_items=[2, 3],
        num_classes=5,
        sem_seg_output_strides=round(1 / settings.get('scale_factor', 1)),
        with_mask=settings.get('with_mask', is_panoptic),
        with_semantic=settings.get('with_seg', is_panoptic),
    )


def _segmentation_batch() -> dict[str, Any]:
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    shape = (SIZE, SIZE)
    samples = [
        SegDataSample(
            metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape),
            gt_sem_seg=PixelData(data=torch.randint(0, 19, (1, *shape))),
        )
        for _ in range(2)
    ]
    images = [torch.randint(0, 256, (3, *shape), dtype=torch.uint8) for _ in samples]
    return dict(inputs=images, data_samples=samples)


def try_model(cfg: Config) -> list[Any]:
    """Compute loss, gradients and predictions; return the predictions.

    Args:
        cfg (Config): As :func:`load` gives it.

    Raises:
        RuntimeError: If the loss is not finite or a parameter of the backbone has no gradient.
    """
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    model.train()
    batch = batch_for(cfg)
    losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    loss, _ = model.parse_losses(losses)
    if not torch.isfinite(loss):
        raise RuntimeError(f'the loss is {loss.item()}')
    loss.backward()
    without = [name for name, p in model.backbone.named_parameters() if p.grad is None]
    if without:
        raise RuntimeError(f'parameters of the backbone without gradient: {", ".join(without)}')
    model.eval()
    with torch.no_grad():
        return model(**model.data_preprocessor(batch_for(cfg)), mode='predict')


def table() -> str:
    """Return the models that were tried, in Markdown."""
    rows = [
        {
            'model': name,
            'base config': f'`{base}`',
            'in `backbone`': f'`{change.backbone}`' if change.backbone else '',
            'elsewhere in `model`': f'`{change.others}`',
            'optimizer': _describe_optimizer(change),
        }
        for base, (change, name) in BASES.items()
    ]
    return format_table(rows, 'markdown')


def _describe_optimizer(change: Change) -> str:
    if not change.rate:
        return 'of the base config'
    return f'`{change.rate}`' + (', `eta_min=5e-6`' if change.schedule else '')


def main(argv: Sequence[str] | None = None) -> int:
    """Try all models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('names', nargs='*', help='the models to try; all by default')
    names = parser.parse_args(argv).names
    warnings.filterwarnings('ignore')
    failed = []
    for base, (_, name) in BASES.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        try:
            try_model(load(base))
            print(f'{base}: loss, backward and prediction', flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(base)
    if failed:
        print(f'failed: {", ".join(failed)}', file=sys.stderr)
        return 1
    if not names:
        write_between_marks(PAGE, {MARKS: table()})
    return 0


if __name__ == '__main__':
    sys.exit(main())
