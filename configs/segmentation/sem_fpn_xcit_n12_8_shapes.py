# Semantic FPN, trained from scratch on the built-in dataset: minutes on two cores.
_base_ = [
    '_base_/models/sem_fpn_xcit.py',
    '_base_/datasets/shapes_semantic.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime.py',
]

model = dict(
    data_preprocessor=dict(size=(96, 96)),
    backbone=dict(arch='n12', patch_size=8, init_cfg=None, drop_path_rate=0.0),
    neck=dict(in_channels=[128] * 4, out_channels=128, norm_cfg=dict(type='BN')),
    decode_head=dict(in_channels=[128] * 4, channels=64, num_classes=6),
)
