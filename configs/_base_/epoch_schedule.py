# The shape of the learning rate in pre-training: a linear warm-up, then a cosine, both counted in
# epochs and set in every iteration. Configs add start_factor, begin, end and eta_min.
warm_up = dict(type='LinearLR', by_epoch=True, begin=0, convert_to_iter_based=True)
cosine = dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True)
