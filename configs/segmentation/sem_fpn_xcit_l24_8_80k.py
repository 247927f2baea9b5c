_base_ = [
    '_base_/models/sem_fpn_xcit.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_80k.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(arch='l24', patch_size=8, init_cfg=dict(checkpoint='xcit://l24/8')),
    neck=dict(in_channels=[768] * 4, out_channels=768),
    decode_head=dict(in_channels=[768] * 4),
)
