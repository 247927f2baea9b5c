_base_ = [
    '_base_/models/upernet_xcit.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_160k.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='t24', patch_size=8, init_cfg=dict(checkpoint='xcit://t24/8')),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192),
)
