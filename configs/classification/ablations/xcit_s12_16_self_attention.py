_base_ = '../xcit_s12_16_in1k.py'

model = dict(backbone=dict(type='AblatedXCiTClassifier', ablation='self_attention'))
