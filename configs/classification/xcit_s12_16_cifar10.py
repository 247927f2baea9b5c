# CIFAR-10 as images in data/cifar10/train/CLASS and data/cifar10/val/CLASS.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=10))
train_dataloader = dict(dataset=dict(data_root='data/cifar10'))
val_dataloader = dict(dataset=dict(data_root='data/cifar10'))
test_dataloader = val_dataloader
