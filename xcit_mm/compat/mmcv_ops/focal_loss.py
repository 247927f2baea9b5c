"""The sigmoid focal loss (arXiv 1708.02002) in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .common import upcast_half

# The smallest number that mmcv takes the logarithm of: FLT_MIN in C.
TINY = torch.finfo(torch.float32).tiny


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Compute the loss of each class of each sample.

    Args:
        input (Tensor): (N, C), the logits.
        target (Tensor): (N,), the classes; C is the background.
        weight (Tensor): (C,), a factor for the samples of each class, or empty.
        output (Tensor): (N, C), which is filled.
        gamma (float): Focusing parameter; down-weights easy samples.
        alpha (float): The factor of the right class; that of the others is 1 - alpha.
    """
    p = upcast_half(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * _log(p)
    wrong = -(1 - alpha) * p**gamma * _log(1 - p)
    output.copy_(_choose(right, wrong, target, weight))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Compute the derivative of each element of :func:`sigmoid_focal_loss_forward`."""
    p = upcast_half(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * (1 - p - gamma * p * _log(p))
    wrong = -(1 - alpha) * p**gamma * (gamma * (1 - p) * _log(1 - p) - p)
    grad_input.copy_(_choose(right, wrong, target, weight))


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=TINY).log()


def _choose(right: Tensor, wrong: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    classes = torch.arange(right.shape[1], device=right.device)
    chosen = torch.where(target[:, None] == classes, right, wrong)
    if not weight.numel():
        return chosen
    # The background has no factor. mmcv reads beyond the end of the tensor there.
    return chosen * F.pad(upcast_half(weight), (0, 1), value=1.0)[target][:, None]
