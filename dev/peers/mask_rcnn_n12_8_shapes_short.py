# A short run, to compare pre-trained weights with random ones.
_base_ = '../../configs/detection/mask_rcnn_xcit_n12_8_shapes.py'

warm_up, decay = _base_.param_scheduler
train_cfg = dict(max_iters=120, val_interval=40)
param_scheduler = [{**warm_up, 'end': 20}, {**decay, 'begin': 20, 'end': 120}]
default_hooks = dict(checkpoint=dict(interval=40))
