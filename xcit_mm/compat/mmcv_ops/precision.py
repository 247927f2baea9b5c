"""In which precision the operators compute."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """A tensor in at least float32: not every operator of torchvision has half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
