# DINO on the built-in dataset, without labels: minutes on two cores.
_base_ = ['_base_/dino_short.py', '../_base_/shapes_objects.py']

epochs = 4
crop = dict(type='CenterImageCrop', size=64, crop_ratio=1.0)
test_pipeline = [_base_.load, crop, dict(type='PackImage')]
model = dict(backbone=dict(patch_size=8))
train_dataloader = dict(
    dataset=dict(
        data_root=_base_.objects_root,
        data_prefix=dict(img_path='train2017'),
        pipeline=[
            _base_.train_pipeline[0],
            dict(_base_.train_pipeline[1], global_size=48, local_size=24, local_crops=4),
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
train_cfg = dict(max_epochs=epochs, val_interval=1)
param_scheduler = [_base_.short_warm_up, dict(**_base_.cosine, begin=0, end=epochs, eta_min=1e-6)]
custom_hooks = [dict(type='ProgressBarHook', key_metric='knn'), dict(type='ValidateFirstHook')]
