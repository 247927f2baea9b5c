# Mask R-CNN with slim heads, from scratch, on the embedded data set: minutes on two cores.
_base_ = [
    '_base_/models/mask_rcnn_xcit_n12_8.py',
    '_base_/datasets/shapes_instance.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime_shapes.py',
]

model = dict(
    backbone=dict(init_cfg=None),
    neck=dict(out_channels=96),
    rpn_head=dict(in_channels=96, feat_channels=96, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=96),
        bbox_head=dict(in_channels=96, fc_out_channels=256, num_classes=5),
        mask_roi_extractor=dict(out_channels=96),
        mask_head=dict(in_channels=96, conv_out_channels=64, num_convs=2, num_classes=5),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=300, max_per_img=150),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
