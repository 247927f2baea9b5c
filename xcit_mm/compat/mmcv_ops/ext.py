"""The replacement of ``mmcv._ext``: operators with the names and the arguments of mmcv's own.

mmcv's Python calls them, and its ``autograd.Function`` classes connect forward and backward. Where
an operator has a tensor for its result among its arguments, that is filled.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from .common import missing_operator
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
    """Return what mmcv reports as its compiler."""
    return 'none: operators from torchvision'


def get_compiling_cuda_version() -> str:
    """Return what mmcv reports as its CUDA version, as if compiled without CUDA."""
    return 'not available'


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return any other operator: mmcv finds it at import, and a call says why there is none."""
    if name.startswith('_'):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise missing_operator(name)

    missing.__name__ = name
    return missing
