# Multi-scale training: each batch has one of the sizes of the paper's appendix.
_base_ = './xcit_s12_16_in1k.py'

model = dict(data_preprocessor=dict(type='MultiScalePreprocessor', sizes=[160, 224, 256, 288, 320]))
train_transform = {**_base_.train_transform, 'input_size': 320}
train_dataloader = dict(dataset=dict(pipeline=[train_transform, dict(type='PackImage')]))
