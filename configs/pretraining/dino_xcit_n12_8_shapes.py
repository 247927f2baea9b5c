# DINO with a small head on the built-in data set, without labels: minutes on two cores.
_base_ = ['_base_/dino_300e.py', '../_base_/shapes_objects.py', '../_base_/short_run.py']

crop = dict(type='CenterImageCrop', size=64, crop_ratio=1.0)
test_pipeline = [_base_.load, crop, dict(type='PackImage')]
model = dict(
    backbone=dict(arch='n12', patch_size=8, drop_path_rate=0.0, norm_cfg=dict(type='BN')),
    head=dict(out_dims=1024, hidden_dims=256, bottleneck_dims=64),
)
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    dataset=dict(
        data_root=_base_.objects_root,
        data_prefix=dict(img_path='train2017'),
        pipeline=[
            _base_.train_pipeline[0],
            dict(type='MultiCrop', global_size=64, local_size=32, local_crops=4),
            dict(type='PackImage'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        datasets=[
            dict(**_base_.train_objects, pipeline=test_pipeline, role='bank', indices=2000),
            dict(**_base_.val_objects, pipeline=test_pipeline),
        ],
    ),
)
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=10, val_interval=5)
# One parameter group would need one weight decay: the schedule raises that of the matrices alone.
optim_wrapper = dict(type='OptimWrapper')
auto_scale_lr = dict(enable=False)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=75),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(
    logger=dict(interval=25),
    dino=dict(momentum=0.99, teacher_temp=(0.04, 0.04), temp_warmup_epochs=1),
    checkpoint=dict(max_keep_ckpts=2),
)
custom_hooks = [dict(type='ProgressBarHook', key_metric='knn')]
