xcit_size = dict(
    backbone=dict(arch='l24', patch_size=8, init_cfg=dict(checkpoint='xcit://l24/8')),
    neck=dict(in_channels=[768] * 4),
)
