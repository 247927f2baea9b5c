# DINO on a few hundred photographs without labels, so nothing is validated. Configs that inherit
# from this set the images, how much the colors of crops change, and the epochs.
_base_ = './dino_short.py'

crops = dict(_base_.train_pipeline[1], global_size=96, local_size=48, local_crops=4)
model = dict(backbone=dict(patch_size=16))
val_cfg = test_cfg = None
val_dataloader = test_dataloader = None
val_evaluator = test_evaluator = None
