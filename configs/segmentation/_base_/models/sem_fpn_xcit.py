# Semantic FPN on XCiT. Configs that inherit from this set arch, patch_size, the checkpoint and the
# widths of neck and head.
_base_ = ['mmseg::_base_/models/fpn_r50.py', '../../../_base_/xcit.py']

model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(_delete_=True, **_base_.xcit),
    decode_head=dict(num_classes=150),
)
