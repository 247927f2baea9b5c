# The defaults of main.py in facebookresearch/xcit, which are DeiT's: 400 epochs of AdamW, the first
# 5 for the warm-up, then a cosine to 1e-5. The learning rate 5e-4 is for 512 images. Unlike theirs,
# training keeps no moving average of the weights. docs/pretraining.md says how to turn that on, and
# gradient clipping and soft distillation.
_base_ = '../../_base_/epoch_schedule.py'

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
    # From 1e-6 for the authors' batch of 1,024 images.
    dict(**_base_.warm_up, start_factor=1e-3, end=5),
    dict(**_base_.cosine, begin=5, end=400, eta_min=1e-5),
]
# Scales the learning rate to the batch in use.
auto_scale_lr = dict(enable=True, base_batch_size=512)
