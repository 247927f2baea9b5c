_base_ = '_base_/xcit_in1k_dist_384.py'

model = dict(
    backbone=dict(arch='s24', patch_size=16, init_cfg=dict(checkpoint='xcit://s24/16/224_dist'))
)
