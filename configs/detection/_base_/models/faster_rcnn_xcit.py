# Faster R-CNN on XCiT: boxes only. Configs that inherit from this add a size of _base_/sizes/.
_base_ = ['mmdet::_base_/models/faster-rcnn_r50_fpn.py', '../../../_base_/xcit.py']

model = dict(backbone=dict(_delete_=True, **_base_.xcit))
