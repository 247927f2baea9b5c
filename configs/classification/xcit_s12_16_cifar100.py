# CIFAR-100 as images in data/cifar100/train/CLASS and data/cifar100/val/CLASS.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=100))
train_dataloader = dict(dataset=dict(data_root='data/cifar100'))
val_dataloader = dict(dataset=dict(data_root='data/cifar100'))
test_dataloader = val_dataloader
