# The objects of the built-in dataset, each cut out as an image of one class.
_base_ = './shapes.py'

objects_root = f'{_base_.shapes.root}/coco'
train_objects = dict(
    type='CocoObjects',
    data_root=objects_root,
    ann_file='annotations/instances_train2017.json',
    data_prefix=dict(img_path='train2017'),
)
val_objects = dict(
    type='CocoObjects',
    data_root=objects_root,
    ann_file='annotations/instances_val2017.json',
    data_prefix=dict(img_path='val2017'),
)
