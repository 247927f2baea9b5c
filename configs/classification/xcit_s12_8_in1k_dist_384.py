_base_ = '_base_/xcit_in1k_dist_384.py'

model = dict(
    backbone=dict(arch='s12', patch_size=8, init_cfg=dict(checkpoint='xcit://s12/8/224_dist'))
)
