# DINO on the training images of BCCD, without boxes; docs/studies/real_data.md has the source.
# They differ little in color: after color changes, crops of an image share nothing.
_base_ = '_base_/dino_photos.py'

epochs = 32
train_dataloader = dict(
    dataset=dict(
        data_root='data/bccd',
        ann_file='ImageSets/Main/trainval.txt',
        data_prefix=dict(img_path='JPEGImages'),
        pipeline=[
            _base_.train_pipeline[0],
            dict(_base_.crops, color_strength=0.0),
            dict(type='PackImage'),
        ],
    ),
)
train_cfg = dict(max_epochs=epochs)
param_scheduler = [_base_.short_warm_up, dict(**_base_.cosine, begin=0, end=epochs, eta_min=1e-6)]
