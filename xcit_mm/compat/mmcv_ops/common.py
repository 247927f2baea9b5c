"""The precision in which the operators compute, and the error of those that are missing."""

import torch
from torch import Tensor

from ...errors import UserError


def upcast_half(x: Tensor) -> Tensor:
    """Return a tensor in at least float32: some operators of torchvision lack half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def missing_operator(name: str) -> UserError:
    """Return the error of an operator that this package does not provide."""
    return UserError(
        f"mmcv's operator {name} is missing: this mmcv came without compiled operators "
        '(mmcv-lite), and XCiT-MM replaces only the common ones. For this one, uninstall '
        'mmcv-lite and get a compiled mmcv 2.1.0: "make setup OPS=compiled" in a clone, or '
        '"mim install mmcv==2.1.0" where a wheel for this torch exists.'
    )
