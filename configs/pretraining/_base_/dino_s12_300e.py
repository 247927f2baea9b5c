# XCiT-S12: VISSL's dino_16gpus_xcit_small_12_p16.yaml. It has none for patches of 8 pixels.
_base_ = './dino_300e.py'

model = dict(backbone=dict(arch='s12'), head=dict(norm_last_layer=False))
