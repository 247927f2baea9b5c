_base_ = '_base_/xcit_in1k.py'

model = dict(backbone=dict(arch='t12', patch_size=16))
