# Mask R-CNN with slim heads, trained from scratch on the built-in dataset: minutes on two cores.
_base_ = [
    '_base_/models/mask_rcnn_xcit.py',
    '_base_/models/slim_heads.py',
    '_base_/datasets/shapes_instance.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime_shapes.py',
]

heads = _base_.slim_heads
roi_extractor = dict(**heads.roi_extractor, roi_layer=dict(type='RoIAlign', sampling_ratio=1))
model = dict(
    backbone=dict(arch='n12', patch_size=8, init_cfg=None, drop_path_rate=0.0),
    neck=dict(in_channels=[128] * 4, **heads.neck),
    rpn_head=dict(**heads.rpn_head, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=roi_extractor,
        bbox_head=dict(**heads.bbox_head, num_classes=5),
        mask_roi_extractor=roi_extractor,
        mask_head=dict(**heads.mask_head, num_classes=5, loss_mask=dict(loss_weight=2.0)),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=300, max_per_img=150),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
