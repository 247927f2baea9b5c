# The built-in dataset in ADE20k's layout.
_base_ = ['./ade20k.py', '../../../_base_/shapes.py']

dataset_type = 'BaseSegDataset'
data_root = f'{_base_.shapes.root}/ade'
metainfo = dict(
    classes=('background', 'disc', 'bar', 'triangle', 'star', 'arc'),
    palette=[
        [60, 60, 60], [230, 80, 80], [80, 180, 80], [80, 120, 230], [230, 190, 60], [180, 90, 200],
    ],
)  # fmt: skip
dataset = dict(type=dataset_type, data_root=data_root, metainfo=metainfo, reduce_zero_label=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=(96, 96)),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(**dataset, pipeline=train_pipeline),
)
val_dataloader = dict(num_workers=1, dataset=dict(**dataset, pipeline=test_pipeline))
test_dataloader = val_dataloader
