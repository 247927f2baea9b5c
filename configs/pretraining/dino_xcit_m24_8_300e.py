# VISSL's models_in1k/xcit_medium_layers24_p8.yaml: other crops, and fewer. Batch 960: 10 images per
# GPU on 96 GPUs.
_base_ = '_base_/dino_m24_300e.py'

read, crops, pack = _base_.train_pipeline
crops = dict(crops, global_scale=(0.32, 1.0), local_scale=(0.05, 0.32), local_crops=6)
model = dict(backbone=dict(patch_size=8))
train_dataloader = dict(batch_size=10, dataset=dict(pipeline=[read, crops, pack]))
