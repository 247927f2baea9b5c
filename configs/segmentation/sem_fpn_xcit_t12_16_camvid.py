_base_ = './sem_fpn_xcit_n12_16_camvid.py'

model = dict(
    backbone=dict(arch='t12'),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
