# A short run, to compare pre-trained weights with random ones.
_base_ = '../../configs/segmentation/sem_fpn_xcit_n12_8_shapes.py'

warm_up, decay = _base_.param_scheduler
train_cfg = dict(max_iters=100, val_interval=50)
param_scheduler = [{**warm_up, 'end': 20}, {**decay, 'begin': 20, 'end': 100}]
default_hooks = dict(checkpoint=dict(interval=50))
