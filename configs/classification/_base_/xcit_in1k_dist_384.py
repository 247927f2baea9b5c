# Fine-tuning at 384 pixels of what was distilled at 224. The authors gave no settings for it; these
# are DeiT's, for 512 images: 30 epochs at a constant rate (README), after a warm-up from 1e-6.
# Their teacher was fine-tuned at 384 as well and is not published: this is the one for 224. Configs
# that inherit from this set arch, patch_size and the checkpoint.
_base_ = ['./xcit_in1k.py', './teacher.py']

train_pipeline = [{**_base_.train_transform, 'input_size': 384}, dict(type='PackImage')]
test_pipeline = [{**_base_.test_transform, 'input_size': 384}, dict(type='PackImage')]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')), teacher=_base_.teacher)
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
train_cfg = dict(max_epochs=30)
param_scheduler = [{**_base_.param_scheduler[0], 'start_factor': 0.2}]
