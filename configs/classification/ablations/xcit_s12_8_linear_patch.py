_base_ = '../xcit_s12_8_in1k.py'

model = dict(backbone=dict(type='AblatedXCiTClassifier', ablation='linear_patch'))
