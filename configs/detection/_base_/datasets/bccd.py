# BCCD, photographs of blood cells. docs/studies/real_data.md says where it comes from;
# xcit-mm convert-data writes its COCO files.
_base_ = 'mmdet::_base_/datasets/coco_detection.py'

data_root = 'data/bccd/'
dataset = dict(
    data_root=data_root,
    metainfo=dict(classes=('Platelets', 'RBC', 'WBC')),
    data_prefix=dict(img=''),
)
test_scale = (448, 336)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=(640, 480), ratio_range=(0.5, 0.9), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(288, 352)),
    # Cells have no up and down.
    dict(
        type='RandomFlip',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal'],
    ),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=test_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    sampler=dict(type='SeededInfiniteSampler'),
    batch_sampler=dict(type='SeededBatchSampler'),
    dataset=dict(**dataset, ann_file='coco/trainval.json', pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=1, dataset=dict(**dataset, ann_file='coco/test.json', pipeline=test_pipeline)
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'coco/test.json')
test_evaluator = val_evaluator
