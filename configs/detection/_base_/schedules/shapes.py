# A short run from scratch on the CPU: warm-up, cosine decay, gradient clipping.
_base_ = ['./adamw_1x.py', '../../../_base_/short_run.py']

# Validate twice during training. tools/test.py evaluates the result.
train_cfg = dict(_delete_=True, type='ExactIterBasedTrainLoop', max_iters=550, val_interval=184)
optim_wrapper = _base_.short_run_optimizer
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=60, end=550, eta_min=1e-6),
]
