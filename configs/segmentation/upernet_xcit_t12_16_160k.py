_base_ = [
    '_base_/models/upernet_xcit.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_160k.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='t12', patch_size=16, init_cfg=dict(checkpoint='xcit://t12/16')),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192),
)
