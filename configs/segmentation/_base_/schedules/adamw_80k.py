# 80k iterations of AdamW: linear warm-up, then linear decay to zero. In full precision, as the
# authors train segmentors; --amp of tools/train.py turns mixed precision on.
_base_ = ['../../../_base_/no_weight_decay.py', '../../../_base_/failsafe_hooks.py']

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=_base_.no_weight_decay),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=80000),
]
train_cfg = dict(type='ExactIterBasedTrainLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    _base_.failsafe_hooks,
    checkpoint=dict(_base_.failsafe_hooks.checkpoint, by_epoch=False, interval=8000),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
