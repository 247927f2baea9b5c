# mmseg's ResNet-50 from scratch, with the head, the data and the processor time of XCiT-N12/16.
_base_ = '../../configs/segmentation/sem_fpn_xcit_n12_16_camvid.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='ResNetV1c',
        depth=50,
        out_indices=(0, 1, 2, 3),
        norm_cfg=dict(type='BN'),
    ),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
# In the same time as XCiT-N12/16: an iteration takes 2.7 times as long.
train_cfg = dict(max_iters=750, val_interval=250)
warm_up, decay = _base_.param_scheduler
param_scheduler = [warm_up, {**decay, 'end': 750}]
