_base_ = './faster_rcnn_xcit_n12_16_bccd.py'

model = dict(backbone=dict(arch='t12'), neck=dict(in_channels=[192] * 4))
