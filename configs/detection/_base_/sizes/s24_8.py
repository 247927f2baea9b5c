xcit_size = dict(
    backbone=dict(arch='s24', patch_size=8, init_cfg=dict(checkpoint='xcit://s24/8')),
    neck=dict(in_channels=[384] * 4),
)
