# The objects of the built-in dataset, classified from scratch: minutes on two cores.
_base_ = ['./xcit_n12_8_in1k.py', '../_base_/shapes_objects.py', '../_base_/short_run.py']

small = dict(type='TimmTransform', input_size=48, interpolation='bicubic')
train_transform = dict(**small, is_training=True, scale=(0.5, 1.0), color_jitter=None)
model = dict(
    backbone=dict(num_classes=5, drop_path_rate=0.0, norm_cfg=dict(type='BN')),
    mixup=None,
)
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    sampler=dict(_delete_=True, type='SeededDefaultSampler', shuffle=True),
    dataset=dict(
        _delete_=True,
        **_base_.train_objects,
        pipeline=[train_transform, dict(type='PackImage')],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        _delete_=True,
        **_base_.val_objects,
        pipeline=[dict(**small, crop_pct=1.0), dict(type='PackImage')],
    ),
)
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=4)
optim_wrapper = _base_.short_run_optimizer
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(**_base_.cosine, begin=0, end=4, eta_min=1e-6),
]
auto_scale_lr = dict(enable=False)
custom_hooks = [dict(type='ProgressBarHook', key_metric='top1')]
