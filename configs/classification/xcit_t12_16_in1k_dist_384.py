_base_ = '_base_/xcit_in1k_dist_384.py'

model = dict(
    backbone=dict(arch='t12', patch_size=16, init_cfg=dict(checkpoint='xcit://t12/16/224_dist'))
)
