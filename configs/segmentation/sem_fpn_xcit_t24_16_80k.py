_base_ = [
    '_base_/models/sem_fpn_xcit.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_80k.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='t24', patch_size=16, init_cfg=dict(checkpoint='xcit://t24/16')),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
