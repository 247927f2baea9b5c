_base_ = '_base_/dino_300e.py'

model = dict(backbone=dict(arch='s12', patch_size=8))
