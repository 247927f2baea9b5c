# UperNet on XCiT. Configs that inherit from this set arch, patch_size, the checkpoint and the input
# widths of both heads.
_base_ = 'mmseg::_base_/models/upernet_r50.py'

model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        _delete_=True,
        type='XCiT',
        # tools/train.py replaces SyncBN with BN on a machine without CUDA.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # To train from scratch: --cfg-options model.backbone.init_cfg=None
        # To train offline: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained'),
    ),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
