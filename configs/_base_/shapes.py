# The built-in data set. tools/train.py and tools/test.py draw it if it is missing.
shapes = dict(root='data/shapes', train=2400, val=120, size=96, seed=0)
