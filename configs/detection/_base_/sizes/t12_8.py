xcit_size = dict(
    backbone=dict(arch='t12', patch_size=8, init_cfg=dict(checkpoint='xcit://t12/8')),
    neck=dict(in_channels=[192] * 4),
)
