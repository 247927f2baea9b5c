# DINO on ImageNet without its labels: 300 epochs, as in the paper. Configs that inherit from this
# set arch and patch_size. Sources of the settings, which the paper leaves out:
# - facebookresearch/dino: the defaults of main_dino.py, and the README for 300 epochs (a teacher
#   temperature that rises to 0.07 in 30 epochs);
# - facebookresearch/vissl, configs/config/pretrain/dino, where it differs for XCiT: the scales of
#   the crops, and a learning rate that ends at 1e-5. Its stochastic depth is that of the arch.
_base_ = [
    './imagenet.py',
    '../../_base_/epoch_schedule.py',
    '../../_base_/pretraining_runtime.py',
]

model = dict(
    type='DINO',
    backbone=dict(
        type='XCiTClassifier',
        # tools/train.py replaces SyncBN with BN on a machine without CUDA.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # Less memory for more time: --cfg-options model.backbone.with_cp=True
        with_cp=False,
    ),
)
optim_wrapper = dict(
    # If the loss is unstable, as with small patches: --cfg-options optim_wrapper.type=OptimWrapper
    type='CudaAmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=0.04),
    # None on biases and norms. DINOHook raises that of all others to 0.4.
    paramwise_cfg=dict(flat_decay_mult=0.0, bias_decay_mult=0.0),
)
auto_scale_lr = dict(enable=True, base_batch_size=256)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(**_base_.warm_up, start_factor=1e-6, end=10),
    dict(**_base_.cosine, begin=10, end=300, eta_min=1e-5),
]
default_hooks = dict(
    dino=dict(type='DINOHook', teacher_temp=(0.04, 0.07), temp_warmup_epochs=30),
    checkpoint=dict(interval=1, max_keep_ckpts=3),
)
