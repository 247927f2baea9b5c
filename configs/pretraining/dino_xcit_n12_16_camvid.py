# DINO on the training images of CamVid, without labels; docs/studies/real_data.md has the source.
_base_ = '_base_/dino_photos.py'

epochs = 26
train_dataloader = dict(
    dataset=dict(
        data_root='data/camvid',
        data_prefix=dict(img_path='images/train'),
        pipeline=[
            _base_.train_pipeline[0],
            dict(_base_.crops, color_strength=0.5),
            dict(type='PackImage'),
        ],
    ),
)
train_cfg = dict(max_epochs=epochs)
param_scheduler = [_base_.short_warm_up, dict(**_base_.cosine, begin=0, end=epochs, eta_min=1e-6)]
