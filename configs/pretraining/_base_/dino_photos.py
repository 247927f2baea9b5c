# DINO on a few hundred photographs without labels, so nothing is validated. Configs that inherit
# from this set the images, the part of an image that a crop shows, and the epochs.
_base_ = './dino_short.py'

crops = dict(type='MultiCrop', global_size=128, local_size=64, local_crops=4)
model = dict(backbone=dict(patch_size=16))
train_dataloader = dict(batch_size=16)
val_cfg = test_cfg = None
val_dataloader = test_dataloader = None
val_evaluator = test_evaluator = None
