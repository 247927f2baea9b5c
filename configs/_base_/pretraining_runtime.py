# What mmengine's runner needs for pre-training, where no other package has a default.
_base_ = './failsafe_hooks.py'

default_scope = 'xcit_mm'
custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    classes=dict(type='ClassesHook'),
    describe=dict(type='DescribeHook'),
    **_base_.failsafe_hooks,
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
