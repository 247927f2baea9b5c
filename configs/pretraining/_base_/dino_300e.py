# DINO on ImageNet without its labels: 300 epochs, as in the paper, with DINO's own settings for
# that length. Configs that inherit from this set arch and patch_size.
_base_ = ['./imagenet.py', '../../_base_/pretraining_runtime.py']

model = dict(
    type='DINO',
    backbone=dict(
        type='XCiTClassifier',
        drop_path_rate=0.1,
        # tools/train.py replaces SyncBN with BN on a machine without CUDA.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        # Less memory for more time: --cfg-options model.backbone.with_cp=True
        with_cp=False,
    ),
)
optim_wrapper = dict(
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
    dict(
        type='LinearLR',
        start_factor=1e-6,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        by_epoch=True,
        begin=10,
        end=300,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(
    dino=dict(type='DINOHook', teacher_temp=(0.04, 0.07), temp_warmup_epochs=30),
    checkpoint=dict(interval=1, max_keep_ckpts=3),
)
