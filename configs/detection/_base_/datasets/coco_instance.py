# COCO with DETR's augmentation, tested at 800x1333. Batch 16: 2 images per GPU on 8 GPUs.
_base_ = 'mmdet::_base_/datasets/coco_instance.py'

short_sides = [(side, 1333) for side in range(480, 801, 32)]
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True)],
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(400, 1333), (500, 1333), (600, 1333)],
                    keep_ratio=True,
                ),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True),
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    sampler=dict(type='SeededDefaultSampler'),
    batch_sampler=dict(type='SeededBatchSampler', batches=dict(type='AspectRatioBatchSampler')),
    dataset=dict(pipeline=train_pipeline),
)
