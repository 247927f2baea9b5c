# Faster R-CNN with slim heads on BCCD, trained from scratch: 23 minutes on one core.
_base_ = [
    '_base_/models/faster_rcnn_xcit.py',
    '_base_/models/slim_heads.py',
    '_base_/datasets/bccd.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime_shapes.py',
]

heads = _base_.slim_heads
roi_layer = dict(type='RoIAlign', sampling_ratio=2)
model = dict(
    backbone=dict(arch='n12', patch_size=16, init_cfg=None, drop_path_rate=0.0),
    neck=dict(in_channels=[128] * 4, **heads.neck),
    rpn_head=dict(**heads.rpn_head, anchor_generator=dict(scales=[6])),
    roi_head=dict(
        bbox_roi_extractor=dict(**heads.roi_extractor, roi_layer=roi_layer),
        bbox_head=dict(**heads.bbox_head, num_classes=3),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=250),
        rcnn=dict(sampler=dict(num=64, pos_fraction=0.4)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=250)),
)
train_cfg = dict(max_iters=1200, val_interval=300)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=100, end=1200, eta_min=1e-6),
]
default_hooks = dict(checkpoint=dict(interval=250))
