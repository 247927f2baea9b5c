_base_ = './xcit_s12_16_flowers.py'

model = dict(backbone=dict(arch='s24', init_cfg=dict(checkpoint='xcit://s24/16/224_dist')))
