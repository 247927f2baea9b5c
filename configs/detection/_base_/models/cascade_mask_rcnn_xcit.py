# Cascade Mask R-CNN on XCiT. Configs that inherit from this set the same as for Mask R-CNN.
_base_ = 'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='XCiT',
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        init_cfg=dict(type='Pretrained'),
    )
)
