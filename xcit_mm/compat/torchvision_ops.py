"""A torchvision that was built for CUDA, next to a torch that was not.

Obstacle: the released torchvision wheels for Linux are built for CUDA. With a CPU build of torch,
their operator library cannot be loaded. torchvision survives that, but then attaches a shape
function to ``torchvision::nms``, which does not exist, and ``import torchvision`` fails. So do timm
and every mmengine ``Runner``, which imports torchvision to report its version.

What this does: declares the schemas of the two operators that torchvision expects at import. They
have no implementation: calling one still raises. mmdet uses mmcv's operators, not these.
"""

import importlib.util
import sys
from pathlib import Path

import torch

SCHEMAS = {
    'nms': '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
    'qnms': '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
}


def apply() -> bool:
    """Declare the missing schemas; returns whether that was necessary."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return False
    if 'torchvision' in sys.modules or hasattr(torch.ops.torchvision, 'nms'):
        return False
    if not _libraries() or load():
        return False
    for name, schema in SCHEMAS.items():
        torch.library.define(f'torchvision::{name}', schema)
    return True


def load() -> bool:
    """Load torchvision's operators, without importing it; returns whether they can be called."""
    try:
        for library in _libraries():
            torch.ops.load_library(library)
    except OSError:
        return False
    # Not nms: apply() declares that one where there is none.
    return hasattr(torch.ops.torchvision, 'roi_align')


def _libraries() -> list[Path]:
    spec = importlib.util.find_spec('torchvision')
    if spec is None or spec.origin is None:
        return []
    files = Path(spec.origin).parent.glob('_C*')
    return [file for file in files if file.suffix in ('.so', '.pyd')]
