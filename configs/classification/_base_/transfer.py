# Transfer of XCiT-S12/16 from ImageNet to another dataset in the same layout, at 224 pixels. The
# paper gives no settings for it; these are ours. Configs that inherit from this set num_classes and
# data_root, and those of other sizes the arch and the checkpoint.
_base_ = './xcit_in1k.py'

model = dict(
    backbone=dict(
        arch='s12',
        patch_size=16,
        init_cfg=dict(type='PretrainedXCiT', checkpoint='xcit://s12/16/224_dist', head=False),
    ),
)
train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type='SeededDefaultSampler', shuffle=True)
)
optim_wrapper = dict(optimizer=dict(lr=5e-5))
train_cfg = dict(max_epochs=100)
warm_up, cosine = _base_.param_scheduler
param_scheduler = [warm_up, {**cosine, 'end': 100, 'eta_min': 1e-6}]
