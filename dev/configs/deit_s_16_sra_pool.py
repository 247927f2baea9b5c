_base_ = './deit_s_16_in1k.py'

model = dict(backbone=dict(attention='sra_pool'))
