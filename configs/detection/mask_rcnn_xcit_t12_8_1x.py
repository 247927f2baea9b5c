_base_ = [
    '_base_/models/mask_rcnn_xcit.py',
    '_base_/sizes/t12_8.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/adamw_1x.py',
    '_base_/runtime.py',
]

model = _base_.xcit_size
