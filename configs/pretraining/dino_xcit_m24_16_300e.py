_base_ = '_base_/dino_m24_300e.py'

model = dict(backbone=dict(patch_size=16))
