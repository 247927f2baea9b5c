# Semantic FPN with a slim neck on CamVid, trained from scratch: 34 minutes on one core.
_base_ = [
    '_base_/models/sem_fpn_xcit.py',
    '_base_/datasets/camvid.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(arch='n12', patch_size=16, init_cfg=None, drop_path_rate=0.0),
    neck=dict(in_channels=[128] * 4, out_channels=64, norm_cfg=dict(type='BN')),
    decode_head=dict(
        in_channels=[64] * 4,
        channels=64,
        num_classes=11,
        # The Lovász loss counts every class alike, as mIoU does: poles are 1 % of the pixels.
        loss_decode=[
            dict(type='CrossEntropyLoss'),
            dict(type='LovaszLoss', loss_type='multi_class', reduction='none'),
        ],
    ),
)
train_cfg = dict(max_iters=2000, val_interval=500)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=100, end=2000),
]
default_hooks = dict(checkpoint=dict(interval=250))
