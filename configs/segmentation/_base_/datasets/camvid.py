# CamVid, street scenes. docs/studies/real_data.md says where it comes from.
_base_ = './ade20k.py'

crop_size = (224, 288)
test_scale = (384, 288)
dataset = dict(
    _delete_=True,
    type='LabelFolder',
    data_root='data/camvid',
    metainfo=dict(
        classes=(
            'Sky', 'Building', 'Pole', 'Road', 'Pavement', 'Tree', 'SignSymbol', 'Fence', 'Car',
            'Pedestrian', 'Bicyclist',
        ),
        palette=[
            [128, 128, 128], [128, 0, 0], [192, 192, 128], [128, 64, 128], [60, 40, 222],
            [128, 128, 0], [192, 128, 128], [64, 64, 128], [64, 0, 128], [64, 64, 0],
            [0, 128, 192],
        ],
    ),
    void=11,
)  # fmt: skip
# Short runs learn more from few changes of the images.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.65, 1.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=test_scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='images/test', seg_map_path='labels/test'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
