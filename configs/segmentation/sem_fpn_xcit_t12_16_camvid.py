_base_ = './sem_fpn_xcit_n12_16_camvid.py'

model = dict(
    backbone=dict(arch='t12'),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
# In the same time as XCiT-N12/16: an iteration takes 1.5 times as long.
train_cfg = dict(max_iters=990, val_interval=330)
warm_up, decay = _base_.param_scheduler
param_scheduler = [warm_up, {**decay, 'end': 990}]
