xcit_size = dict(
    backbone=dict(arch='t12', patch_size=16, init_cfg=dict(checkpoint='xcit://t12/16')),
    neck=dict(in_channels=[192] * 4),
)
