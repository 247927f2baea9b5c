_base_ = './runtime.py'

default_hooks = dict(logger=dict(interval=25), checkpoint=dict(max_keep_ckpts=2))
custom_hooks = [dict(type='ProgressBarHook')]
randomness = dict(seed=0)
