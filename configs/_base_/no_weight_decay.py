# The released configs exempt every parameter with `norm` in its released name. Those are the
# LayerNorms only: the released names of BatchNorms are `bn` or a number inside a Sequential. Our
# names call both `norm`, so the LayerNorms are listed one by one. A classifier has one more, the
# last `norm`; no config here trains it.
no_weight_decay = {name: dict(decay_mult=0.0) for name in ('norm1', 'norm2', 'norm3')}
