# Flowers-102 as images in data/flowers/train/CLASS and data/flowers/val/CLASS.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=102))
train_dataloader = dict(dataset=dict(data_root='data/flowers'))
val_dataloader = dict(dataset=dict(data_root='data/flowers'))
test_dataloader = val_dataloader
