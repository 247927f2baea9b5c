_base_ = '_base_/dino_s12_300e.py'

model = dict(backbone=dict(patch_size=16))
