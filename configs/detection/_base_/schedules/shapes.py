# A short run from scratch on the CPU: warm-up, cosine decay, gradient clipping.
_base_ = './adamw_1x.py'

train_cfg = dict(max_epochs=4)
optim_wrapper = dict(
    optimizer=dict(lr=6e-4), clip_grad=dict(max_norm=5.0, norm_type=2), type='OptimWrapper'
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=4, convert_to_iter_based=True),
]
