_base_ = '_base_/dino_300e.py'

model = dict(backbone=dict(arch='m24', patch_size=16))
