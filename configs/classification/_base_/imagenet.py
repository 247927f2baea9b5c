# ImageNet-1k, one folder per class. Batch 1024: 128 images per GPU on 8 GPUs.
dataset = dict(type='LabeledFolder', data_root='data/imagenet')
train_transform = dict(
    type='TimmTransform',
    input_size=224,
    is_training=True,
    auto_augment='rand-m9-mstd0.5-inc1',
    re_prob=0.25,
    re_mode='pixel',
    interpolation='bicubic',
)
# The authors test with a crop ratio of 1. Another one, or another resolution:
# --cfg-options test_dataloader.dataset.pipeline.0.crop_pct=0.875
test_transform = dict(type='TimmTransform', input_size=224, interpolation='bicubic', crop_pct=1.0)
train_dataloader = dict(
    batch_size=128,
    num_workers=10,
    persistent_workers=True,
    sampler=dict(type='SeededRepeatSampler', repeats=3),
    batch_sampler=dict(type='SeededBatchSampler', drop_last=True),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='train'),
        pipeline=[train_transform, dict(type='PackImage')],
    ),
)
val_dataloader = dict(
    batch_size=192,
    num_workers=10,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='val'),
        pipeline=[test_transform, dict(type='PackImage')],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='TopKAccuracy', names=['top1', 'top5'])
test_evaluator = val_evaluator
