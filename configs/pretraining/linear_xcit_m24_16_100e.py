_base_ = '_base_/linear_100e.py'

model = dict(
    backbone=dict(arch='m24', patch_size=16, init_cfg=dict(checkpoint='xcit://dino/m24/16')),
    linear_weights=_base_.published_linear.format('medium_24_p16'),
)
