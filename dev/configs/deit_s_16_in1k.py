# DeiT-S on ImageNet-1k: 300 epochs of the recipe that XCiT follows. Positions are interpolated for
# images of other sizes than 224. Another size and patch size, from scratch:
# --cfg-options model.backbone.img_size=320 model.backbone.patch_size=20 \
#   train_dataloader.dataset.pipeline.0.input_size=320 \
#   val_dataloader.dataset.pipeline.0.input_size=320
_base_ = '../../configs/classification/_base_/xcit_in1k.py'

custom_imports = dict(imports=['xcit_mm', 'dev.deit'], allow_failed_imports=False)
model = dict(
    backbone=dict(
        _delete_=True,
        type='TimmClassifier',
        name='deit_small_patch16_224',
        num_classes=1000,
        drop_path_rate=0.1,
        dynamic_img_size=True,
    )
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(pos_embed=dict(decay_mult=0.0))))
train_cfg = dict(max_epochs=300)
warm_up, cosine = _base_.param_scheduler
param_scheduler = [warm_up, {**cosine, 'end': 300}]
