_base_ = './xcit_s12_16_cars.py'

model = dict(backbone=dict(arch='l24', init_cfg=dict(checkpoint='xcit://l24/16/224_dist')))
