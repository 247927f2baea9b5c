# UperNet, trained from scratch on the built-in dataset: minutes on two cores.
_base_ = [
    '_base_/models/upernet_xcit.py',
    '_base_/datasets/shapes_semantic.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime.py',
]

model = dict(
    data_preprocessor=dict(size=(96, 96)),
    backbone=dict(arch='n12', patch_size=8, init_cfg=None),
    decode_head=dict(in_channels=[128] * 4, channels=96, num_classes=6),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=6),
)
