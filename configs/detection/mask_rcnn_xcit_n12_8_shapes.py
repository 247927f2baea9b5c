# Mask R-CNN with slim heads, trained from scratch on the built-in data set: minutes on two cores.
_base_ = [
    '_base_/models/mask_rcnn_xcit_n12_8.py',
    '_base_/datasets/shapes_instance.py',
    '_base_/schedules/shapes.py',
    '_base_/runtime_shapes.py',
]

norm_cfg = dict(type='BN')
channels = 64
roi_layer = dict(type='RoIAlign', sampling_ratio=1)
model = dict(
    backbone=dict(init_cfg=None, drop_path_rate=0.0),
    neck=dict(out_channels=channels, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=channels, feat_channels=channels, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels, roi_layer=roi_layer),
        bbox_head=dict(
            type='ConvFCBBoxHead',
            in_channels=channels,
            num_shared_convs=2,
            num_shared_fcs=1,
            conv_out_channels=channels,
            fc_out_channels=256,
            norm_cfg=norm_cfg,
            num_classes=5,
        ),
        mask_roi_extractor=dict(out_channels=channels, roi_layer=roi_layer),
        mask_head=dict(
            in_channels=channels,
            num_convs=2,
            conv_out_channels=channels,
            norm_cfg=norm_cfg,
            num_classes=5,
            loss_mask=dict(loss_weight=2.0),
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=300, max_per_img=150),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
