_base_ = [
    '_base_/models/sem_fpn_xcit.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_80k.py',
    '_base_/runtime.py',
]

model = dict(
    backbone=dict(
        arch='m24',
        patch_size=16,
        # As in the released config, which gave the published result; the paper has 0.15 for M24.
        drop_path_rate=0.2,
        init_cfg=dict(checkpoint='xcit://m24/16'),
    ),
    neck=dict(in_channels=[512] * 4, out_channels=512),
    decode_head=dict(in_channels=[512] * 4),
)
