_base_ = '_base_/xcit_in1k.py'

model = dict(backbone=dict(arch='l24', patch_size=16))
