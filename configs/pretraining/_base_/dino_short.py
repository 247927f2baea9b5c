# DINO on a few hundred images: a small network and head, minutes on two cores. With fewer steps,
# the teacher follows faster and stays sharp. Configs that inherit from this set patch_size, the
# images and the epochs.
_base_ = ['./dino_300e.py', '../../_base_/short_run.py']

model = dict(
    backbone=dict(arch='n12', norm_cfg=dict(type='BN')),
    head=dict(out_dims=256, hidden_dims=256, bottleneck_dims=64),
)
train_dataloader = dict(batch_size=16, num_workers=1)
# One parameter group would need one weight decay: the schedule raises that of the matrices alone.
optim_wrapper = dict(type='OptimWrapper')
auto_scale_lr = dict(enable=False)
short_warm_up = dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50)
default_hooks = dict(
    logger=dict(interval=25),
    dino=dict(momentum=0.98, teacher_temp=(0.04, 0.04), temp_warmup_epochs=1, freeze_last_layer=0),
    checkpoint=dict(max_keep_ckpts=2),
)
