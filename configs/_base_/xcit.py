# The backbone of all models. They add arch, patch_size and the checkpoint.
xcit = dict(
    type='XCiT',
    # tools/train.py replaces SyncBN with BN on a machine without CUDA.
    norm_cfg=dict(type='SyncBN', requires_grad=True),
    # To train from scratch: --cfg-options model.backbone.init_cfg=None
    # To train offline: --cfg-options model.backbone.init_cfg.checkpoint=FILE
    init_cfg=dict(type='Pretrained'),
)
