# Semantic FPN on XCiT. Who inherits this sets arch, patch_size, the checkpoint and the widths of
# neck and head. Stochastic depth is the paper's, for M24 too (0.15; the authors' config has 0.2).
_base_ = 'mmseg::_base_/models/fpn_r50.py'

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
)
