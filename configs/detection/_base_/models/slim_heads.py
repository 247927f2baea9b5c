# Slim neck and heads of a two-stage detector, for small data and a CPU.
_channels = 64
_norm_cfg = dict(type='BN')
slim_heads = dict(
    neck=dict(out_channels=_channels, norm_cfg=_norm_cfg),
    rpn_head=dict(in_channels=_channels, feat_channels=_channels),
    roi_extractor=dict(out_channels=_channels),
    bbox_head=dict(
        type='ConvFCBBoxHead',
        in_channels=_channels,
        num_shared_convs=2,
        num_shared_fcs=1,
        conv_out_channels=_channels,
        fc_out_channels=256,
        norm_cfg=_norm_cfg,
    ),
    mask_head=dict(
        in_channels=_channels, num_convs=2, conv_out_channels=_channels, norm_cfg=_norm_cfg
    ),
)
