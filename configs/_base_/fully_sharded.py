# Shards weights, gradients and optimizer state over the processes. See docs/distributed.md.
model_wrapper_cfg = dict(type='FullySharded')
