# iNaturalist 2018 as downloaded: data/inat18/train2018.json, val2018.json, train_val2018/.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=8142))
inaturalist = dict(type='INaturalist', data_root='data/inat18', data_prefix=dict(img_path='.'))
train_dataloader = dict(dataset=dict(**inaturalist, ann_file='train2018.json'))
val_dataloader = dict(dataset=dict(**inaturalist, ann_file='val2018.json'))
test_dataloader = val_dataloader
