# XCiT-M24: VISSL's dino_32gpus_xcit_medium_24_p16.yaml. Batch 1024: 32 images per GPU on 32 GPUs.
_base_ = './dino_300e.py'

model = dict(backbone=dict(arch='m24'), head=dict(norm_last_layer=False))
train_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=2.5e-4))
