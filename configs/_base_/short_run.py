# A short run from scratch on the CPU.
short_run_optimizer = dict(
    type='OptimWrapper',
    # No paramwise_cfg: a single parameter group makes a single fused step.
    optimizer=dict(lr=1e-3, fused=True),
    paramwise_cfg=None,
    clip_grad=dict(max_norm=5.0, norm_type=2),
)
custom_hooks = [dict(type='ProgressBarHook')]
randomness = dict(seed=0)
