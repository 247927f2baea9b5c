# Mask R-CNN on XCiT. Who inherits this sets arch, patch_size, the checkpoint and the neck's width.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='XCiT',
        # BN on a machine without CUDA: tools/train.py sees to it.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # From scratch: --cfg-options model.backbone.init_cfg=None
        # Offline: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained'),
    )
)
