# Semantic FPN on XCiT. Configs that inherit from this set arch, patch_size, the checkpoint and the
# widths of neck and head.
_base_ = './encoder_decoder.py'

model = dict(
    neck=dict(type='FPN', num_outs=4),
    decode_head=dict(type='FPNHead', feature_strides=[4, 8, 16, 32], channels=128),
)
