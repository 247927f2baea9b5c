# A short run from scratch on the CPU: warm-up, cosine decay, gradient clipping.
_base_ = './adamw_1x.py'

# Validate twice during training. tools/test.py evaluates the result.
train_cfg = dict(_delete_=True, type='ExactIterBasedTrainLoop', max_iters=550, val_interval=184)
optim_wrapper = dict(
    type='OptimWrapper',
    # No paramwise_cfg: a single parameter group makes a single fused step.
    optimizer=dict(lr=1e-3, fused=True),
    paramwise_cfg=None,
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=60, end=550, eta_min=1e-6),
]
