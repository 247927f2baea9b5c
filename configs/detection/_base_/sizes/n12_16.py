xcit_size = dict(
    backbone=dict(arch='n12', patch_size=16, init_cfg=dict(checkpoint='xcit://n12/16')),
    neck=dict(in_channels=[128] * 4),
)
