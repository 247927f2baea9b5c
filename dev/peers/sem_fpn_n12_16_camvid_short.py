# A short run on smaller images, to compare pre-trained weights with random ones.
_base_ = '../../configs/segmentation/sem_fpn_xcit_n12_16_camvid.py'

crop_size = (160, 192)
train_pipeline, test_pipeline = _base_.train_pipeline, _base_.test_pipeline
train_pipeline[2].update(scale=(320, 240))
train_pipeline[3].update(crop_size=crop_size)
test_pipeline[1].update(scale=(256, 192))
model = dict(data_preprocessor=dict(size=crop_size))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
warm_up, decay = _base_.param_scheduler
train_cfg = dict(max_iters=160, val_interval=80)
param_scheduler = [{**warm_up, 'end': 20}, {**decay, 'begin': 20, 'end': 160}]
default_hooks = dict(checkpoint=dict(interval=80))
