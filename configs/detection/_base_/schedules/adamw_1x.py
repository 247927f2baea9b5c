# 12 epochs with steps at 8 and 11, as in mmdet's 1x schedule, with AdamW.
_base_ = ['mmdet::_base_/schedules/schedule_1x.py', '../../../_base_/no_weight_decay.py']

optim_wrapper = dict(
    _delete_=True,
    type='CudaAmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=_base_.no_weight_decay),
)
