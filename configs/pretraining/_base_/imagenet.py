# ImageNet-1k: all images of train/ without labels; k-NN and a linear classifier on their features.
# Batch 1024: 64 images per GPU on 16 GPUs. For images of your own:
# --cfg-options train_dataloader.dataset.data_root=FOLDER
# train_dataloader.dataset.data_prefix.img_path=. and, if they have no labels, --no-validate
load = dict(type='LoadChannels', channels=3)
train_pipeline = [
    dict(type='LoadChannels', channels=3, skip_unreadable=True),
    dict(
        type='MultiCrop',
        global_size=224,
        global_scale=(0.3, 1.0),
        local_size=96,
        local_scale=(0.05, 0.3),
        local_crops=8,
    ),
    dict(type='PackImage'),
]
test_pipeline = [load, dict(type='CenterImageCrop', size=224), dict(type='PackImage')]
labeled = dict(type='LabeledFolder', data_root='data/imagenet', pipeline=test_pipeline)
train_dataloader = dict(
    batch_size=64,
    num_workers=10,
    persistent_workers=True,
    sampler=dict(type='SeededDefaultSampler', shuffle=True),
    batch_sampler=dict(type='SeededBatchSampler', drop_last=True),
    dataset=dict(
        type='UnlabeledFolder',
        data_root='data/imagenet',
        data_prefix=dict(img_path='train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=10,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ConcatDataset',
        datasets=[
            dict(**labeled, data_prefix=dict(img_path='train'), role='bank'),
            dict(**labeled, data_prefix=dict(img_path='val')),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = [dict(type='KNNAccuracy'), dict(type='LinearProbe')]
test_evaluator = val_evaluator
