# 40 iterations: long enough to tell the ablations apart, too short for all of them to be right.
_base_ = '../../configs/classification/xcit_n12_8_shapes.py'

warm_up, cosine = _base_.param_scheduler
train_dataloader = dict(dataset=dict(indices=2560))
train_cfg = dict(max_epochs=1)
param_scheduler = [warm_up, {**cosine, 'end': 1}]
