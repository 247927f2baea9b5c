"""What stands in for ``mmcv._ext``: operators with the names and the arguments of mmcv's own.

mmcv's Python calls them, and its ``autograd.Function`` classes connect forward and backward. Where
an operator has a tensor for its result among its arguments, that is filled.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import UserError
from .deform_attn import ms_deform_attn_backward, ms_deform_attn_forward
from .deform_conv import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
)
from .focal_loss import sigmoid_focal_loss_backward, sigmoid_focal_loss_forward
from .nms import nms, softnms
from .roi_align import roi_align_backward, roi_align_forward

__all__ = [
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'roi_align_backward',
    'roi_align_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softnms',
]


def get_compiler_version() -> str:
    """What mmcv reports as its compiler."""
    return 'none: operators from torchvision'


def get_compiling_cuda_version() -> str:
    """What mmcv reports as its CUDA version, in the words of an mmcv compiled without CUDA."""
    return 'not available'


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Every other operator: mmcv finds it at import, and a call says why there is none."""
    if name.startswith('_'):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise UserError(
            f"mmcv's operator {name} is missing: this mmcv came without compiled operators "
            '(mmcv-lite), and XCiT-MM replaces only the common ones. For this one, uninstall '
            'mmcv-lite and get a compiled mmcv 2.1.0: "make setup OPS=compiled" in a clone, or '
            '"mim install mmcv==2.1.0" where a wheel for this torch exists.'
        )

    missing.__name__ = name
    return missing
