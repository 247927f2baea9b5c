# The teacher of DeiT and of the paper: RegNetY-16GF, 82.9 % top-1.
# Offline: --cfg-options model.teacher.checkpoint=FILE
teacher = dict(name='regnety_160.deit_in1k', weight=0.5)
