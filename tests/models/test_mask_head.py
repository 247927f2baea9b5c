"""The mask head of ``xcit-mm init`` starts with a loss that makes sense."""

import math

import pytest
import torch
from mmdet.models.roi_heads.mask_heads import FCNMaskHead

from xcit_mm.models.mask_head import NormalInitMaskHead


def first_loss(kind, classes):
    """The mean loss of random features and targets, and the norm of its gradient."""
    torch.manual_seed(0)
    head = kind(num_classes=classes, in_channels=96, conv_out_channels=96)
    head.init_weights()
    logits = head(torch.randn(8, 96, 14, 14))
    labels = torch.randint(classes, (8,))
    loss = head.loss_mask(logits, torch.randint(2, (8, 28, 28)).float(), labels)
    loss.sum().backward()
    squares = [parameter.grad.square().sum() for parameter in head.parameters()]
    return float(loss.detach()), float(sum(squares)) ** 0.5


@pytest.mark.parametrize('classes', [1, 80])
def test_the_first_loss_of_a_mask_is_that_of_a_coin(classes):
    loss, norm = first_loss(NormalInitMaskHead, classes)
    # Logits have a deviation of 0.001 times the norm of 96 features, which is below 100: the loss
    # differs from ln 2 by less than an eighth of their square.
    assert loss == pytest.approx(math.log(2), abs=0.1**2 / 8 + 0.01)
    assert norm < 1


def test_mmdets_own_depends_on_the_number_of_classes():
    """If this fails, mmdet has changed, and our head is no longer needed."""
    assert first_loss(FCNMaskHead, 1)[0] > 2
