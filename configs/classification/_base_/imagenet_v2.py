# ImageNet-V2, matched frequency, with its folders 0 to 999. Results have names of their own.
imagenet_v2 = dict(data_root='data/imagenet_v2', data_prefix=dict(img_path='.'))
imagenet_v2_evaluator = dict(prefix='imagenet_v2')
