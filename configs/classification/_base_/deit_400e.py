# 400 epochs of AdamW: 5 epochs of warm-up, then a cosine to 1e-5; 5e-4 is for 512 images.
optim_wrapper = dict(
    type='CudaAmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # As in DeiT: none on biases, norms, LayerScale and the class token.
    paramwise_cfg=dict(
        flat_decay_mult=0.0, bias_decay_mult=0.0, custom_keys=dict(cls_token=dict(decay_mult=0.0))
    ),
)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=400, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=5,
        end=400,
        convert_to_iter_based=True,
    ),
]
# Scales the learning rate to the batch in use.
auto_scale_lr = dict(enable=True, base_batch_size=512)
