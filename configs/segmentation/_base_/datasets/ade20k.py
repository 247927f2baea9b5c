# ADE20k as in mmseg. Batch 16: 2 images per GPU on 8 GPUs.
_base_ = 'mmseg::_base_/datasets/ade20k.py'

# Whether labels count from 1 is a setting of the dataset. LoadAnnotations follows it.
load_labels = dict(type='LoadAnnotations')
train_pipeline = [_base_.train_pipeline[0], load_labels, *_base_.train_pipeline[2:]]
test_pipeline = [*_base_.test_pipeline[:2], load_labels, _base_.test_pipeline[3]]
train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    sampler=dict(type='SeededInfiniteSampler'),
    batch_sampler=dict(type='SeededBatchSampler'),
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
