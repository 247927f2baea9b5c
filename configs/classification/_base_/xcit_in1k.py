# XCiT on ImageNet-1k with DeiT's recipe. Stochastic depth and LayerScale follow from the arch.
# Configs that inherit from this set arch and patch_size.
_base_ = ['./imagenet.py', './deit_400e.py', '../../_base_/pretraining_runtime.py']

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='XCiTClassifier',
        num_classes=1000,
        # tools/train.py replaces SyncBN with BN on a machine without CUDA.
        norm_cfg=dict(type='SyncBN', requires_grad=True),
    ),
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0),
    label_smoothing=0.1,
)
default_hooks = dict(
    checkpoint=dict(interval=1, max_keep_ckpts=3, save_best='accuracy/top1'),
)
