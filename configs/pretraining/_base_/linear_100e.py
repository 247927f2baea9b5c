# DINO's linear protocol on ImageNet: a linear classifier on the class token of a frozen network,
# with the defaults of eval_linear.py in facebookresearch/dino. Batch 1024: 128 images per GPU on 8
# GPUs. Configs that inherit from this set arch, patch_size, the checkpoint and linear_weights, the
# published classifier: testing takes it if a file has the network alone.
_base_ = ['../../classification/_base_/imagenet.py', '../../_base_/pretraining_runtime.py']

# In the README of facebookresearch/dino.
published_linear = (
    'https://dl.fbaipublicfiles.com/dino/dino_xcit_{0}_pretrain/dino_xcit_{0}_linearweights.pth'
)
model = dict(
    type='LinearClassifier',
    backbone=dict(
        type='XCiTClassifier', num_classes=1000, init_cfg=dict(type='PretrainedXCiT', head=False)
    ),
)
crop_and_flip = dict(
    type='TimmTransform',
    input_size=224,
    is_training=True,
    color_jitter=None,
    interpolation='bilinear',
)
# DINO crops, unlike the authors of XCiT in their supervised results.
test_pipeline = [{**_base_.test_transform, 'crop_pct': 0.875}, dict(type='PackImage')]
train_dataloader = dict(
    sampler=dict(_delete_=True, type='SeededDefaultSampler', shuffle=True),
    dataset=dict(pipeline=[crop_and_flip, dict(type='PackImage')]),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=0)
)
auto_scale_lr = dict(enable=True, base_batch_size=256)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=100, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
# Unlike in training a network, the rate is the same in all steps of an epoch.
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, T_max=100, eta_min=0)]
default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=3, save_best='accuracy/top1'))
