# Mask R-CNN on XCiT. Configs that inherit from this set arch, patch_size, the checkpoint and the
# input width of the neck.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='XCiT',
        # tools/train.py replaces SyncBN with BN on a machine without CUDA.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # To train from scratch: --cfg-options model.backbone.init_cfg=None
        # To train offline: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained'),
    )
)
