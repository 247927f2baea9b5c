_base_ = '_base_/linear_100e.py'

model = dict(
    backbone=dict(arch='m24', patch_size=8, init_cfg=dict(checkpoint='xcit://dino/m24/8')),
    linear_weights=_base_.published_linear.format('medium_24_p8'),
)
