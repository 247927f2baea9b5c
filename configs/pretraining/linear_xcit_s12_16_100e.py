_base_ = '_base_/linear_100e.py'

model = dict(
    backbone=dict(arch='s12', patch_size=16, init_cfg=dict(checkpoint='xcit://dino/s12/16')),
    linear_weights=_base_.published_linear.format('small_12_p16'),
)
