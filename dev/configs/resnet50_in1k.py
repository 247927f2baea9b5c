# ResNet-50 in the recipe of DeiT-S; the study of resolutions tests timm's weights with it.
_base_ = './deit_s_16_in1k.py'

model = dict(backbone=dict(_delete_=True, type='TimmClassifier', name='resnet50', num_classes=1000))
