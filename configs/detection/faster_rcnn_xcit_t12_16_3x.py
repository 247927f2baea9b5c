_base_ = [
    '_base_/models/faster_rcnn_xcit.py',
    '_base_/sizes/t12_16.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/adamw_3x.py',
    '_base_/runtime.py',
]

model = _base_.xcit_size
