_base_ = './xcit_s12_16_cars.py'

model = dict(backbone=dict(arch='m24', init_cfg=dict(checkpoint='xcit://m24/16/224_dist')))
