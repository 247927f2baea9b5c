# XCiT-S12: as in VISSL's config of it. DINO's authors, too, do not normalise the last layer of the
# head for small networks; for larger ones, that can make training unstable.
_base_ = './dino_300e.py'

model = dict(backbone=dict(arch='s12', drop_path_rate=0.05), head=dict(norm_last_layer=False))
