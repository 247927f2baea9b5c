xcit_size = dict(
    backbone=dict(arch='m24', patch_size=16, init_cfg=dict(checkpoint='xcit://m24/16')),
    neck=dict(in_channels=[512] * 4),
)
