xcit_size = dict(
    backbone=dict(arch='s12', patch_size=16, init_cfg=dict(checkpoint='xcit://s12/16')),
    neck=dict(in_channels=[384] * 4),
)
