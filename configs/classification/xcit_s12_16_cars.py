# Stanford Cars as images in data/cars/train/CLASS and data/cars/val/CLASS.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=196))
train_dataloader = dict(dataset=dict(data_root='data/cars'))
val_dataloader = dict(dataset=dict(data_root='data/cars'))
test_dataloader = val_dataloader
