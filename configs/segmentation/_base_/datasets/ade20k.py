# ADE20k as in mmseg. Batch 16: 2 images per GPU on 8 GPUs.
_base_ = 'mmseg::_base_/datasets/ade20k.py'

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    sampler=dict(type='SeededInfiniteSampler'),
    batch_sampler=dict(type='SeededBatchSampler'),
)
