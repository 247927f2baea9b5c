_base_ = [
    '_base_/models/cascade_mask_rcnn_xcit.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/adamw_3x.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='n12', patch_size=16, init_cfg=dict(checkpoint='xcit://n12/16')),
    neck=dict(in_channels=[128] * 4),
)
