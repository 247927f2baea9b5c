_base_ = [
    '_base_/models/cascade_mask_rcnn_xcit.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/adamw_3x.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='t12', patch_size=16, init_cfg=dict(checkpoint='xcit://t12/16')),
    neck=dict(in_channels=[192] * 4),
)
