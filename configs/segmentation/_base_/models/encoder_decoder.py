# What the segmentors have in common: XCiT, and mmseg's settings of a head.
_base_ = '../../../_base_/xcit.py'

norm_cfg = dict(type='SyncBN', requires_grad=True)
data_preprocessor = dict(
    type='SegDataPreProcessor',
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    bgr_to_rgb=True,
    pad_val=0,
    seg_pad_val=255,
)
model = dict(
    type='EncoderDecoder',
    pretrained=None,
    data_preprocessor=dict(**data_preprocessor, size=(512, 512)),
    backbone=_base_.xcit,
    decode_head=dict(
        in_index=[0, 1, 2, 3],
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
