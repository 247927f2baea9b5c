_base_ = ['../xcit_s12_16_in1k_dist_384.py', '../_base_/imagenet_v2.py']

test_dataloader = dict(dataset=_base_.imagenet_v2)
test_evaluator = _base_.imagenet_v2_evaluator
