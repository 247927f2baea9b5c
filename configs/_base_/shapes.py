# The built-in dataset. Training and testing draw it if it is missing and they use no other data;
# shapes = None means never.
shapes = dict(root='data/shapes', train=2400, val=120, size=96, seed=0)
