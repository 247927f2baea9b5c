# UperNet on XCiT. Who inherits this sets arch, patch_size, the checkpoint and the heads' widths.
_base_ = 'mmseg::_base_/models/upernet_r50.py'

model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        _delete_=True,
        type='XCiT',
        # BN on a machine without CUDA: tools/train.py sees to it.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # From scratch: --cfg-options model.backbone.init_cfg=None
        # Offline: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained'),
    ),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
