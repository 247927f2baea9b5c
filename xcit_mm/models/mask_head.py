"""A mask head whose first loss does not depend on the number of classes.

Importing this module registers it. It needs mmdet, so nothing here imports it: a config does, with
``custom_imports = dict(imports=['xcit_mm', 'xcit_mm.models.mask_head'])``.
"""

from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmengine.registry import MODELS
from torch import nn


@MODELS.register_module()
class NormalInitMaskHead(FCNMaskHead):
    """``FCNMaskHead`` whose last layer starts near zero, so that its loss starts near ln 2.

    mmdet draws the weights of that layer with a variance of 2 / classes. With 80 classes, the first
    logits are moderate. With one class, they are so large that the first loss is above 10, and its
    gradient drowns all others.
    """

    def init_weights(self) -> None:
        """As in mmdet, but for the last layer."""
        super().init_weights()
        nn.init.normal_(self.conv_logits.weight, std=0.001)
