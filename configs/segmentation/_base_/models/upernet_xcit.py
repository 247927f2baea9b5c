# UperNet on XCiT. Configs that inherit from this set arch, patch_size, the checkpoint and the input
# widths of both heads.
_base_ = './encoder_decoder.py'

model = dict(
    decode_head=dict(type='UPerHead', pool_scales=(1, 2, 3, 6), channels=512),
    auxiliary_head=dict(
        _base_.model.decode_head,
        type='FCNHead',
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        loss_decode=dict(_base_.model.decode_head.loss_decode, loss_weight=0.4),
    ),
)
