xcit_size = dict(
    backbone=dict(arch='t24', patch_size=16, init_cfg=dict(checkpoint='xcit://t24/16')),
    neck=dict(in_channels=[192] * 4),
)
