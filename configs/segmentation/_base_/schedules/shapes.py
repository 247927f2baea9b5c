# A short run from scratch on the CPU: warm-up, linear decay, gradient clipping.
_base_ = ['./adamw_80k.py', '../../../_base_/short_run.py']

# Validate twice during training. tools/test.py evaluates the result.
train_cfg = dict(max_iters=420, val_interval=140)
optim_wrapper = _base_.short_run_optimizer
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=40),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=40, end=420),
]
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=42, max_keep_ckpts=2))
