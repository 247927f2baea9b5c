"""Configs of tiny models on small data, for tests that run the tools in their own process."""

import functools
import tempfile
from pathlib import Path

from mmengine.config import Config

ROOT = Path(__file__).parents[1]
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
load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', reduce_zero_label=True)]
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
    """The text of a config with all that it inherits, which takes long to find; {data} is left."""
    # All images, also those that mmdet's configs leave out of training.
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
