# iNaturalist 2019 as downloaded: data/inat19/train2019.json, val2019.json, train_val2019/.
_base_ = '_base_/transfer.py'

model = dict(backbone=dict(num_classes=1010))
inaturalist = dict(type='INaturalist', data_root='data/inat19', data_prefix=dict(img_path='.'))
train_dataloader = dict(dataset=dict(**inaturalist, ann_file='train2019.json'))
val_dataloader = dict(dataset=dict(**inaturalist, ann_file='val2019.json'))
test_dataloader = val_dataloader
