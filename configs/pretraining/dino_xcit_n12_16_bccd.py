# DINO on the training images of BCCD, without their boxes. docs/real_data.md says where they come
# from. The crops show cells as large as the detector sees them.
_base_ = '_base_/dino_photos.py'

epochs = 14
train_dataloader = dict(
    dataset=dict(
        data_root='data/bccd',
        ann_file='ImageSets/Main/trainval.txt',
        data_prefix=dict(img_path='JPEGImages'),
        pipeline=[
            _base_.train_pipeline[0],
            dict(**_base_.crops, global_scale=(0.1, 0.5), local_scale=(0.02, 0.1)),
            dict(type='PackImage'),
        ],
    ),
)
train_cfg = dict(max_epochs=epochs)
param_scheduler = [_base_.short_warm_up, dict(**_base_.cosine, begin=0, end=epochs, eta_min=1e-6)]
