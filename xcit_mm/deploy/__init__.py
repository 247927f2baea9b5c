"""Turns a checkpoint into one file that runs without this package, and checks that file."""

import torch
from mmengine.utils import digit_version

from ..errors import UserError

# Its modules use what older versions lack, some of it when they are imported.
if digit_version(torch.__version__) < digit_version('2.6'):
    raise UserError(f'Exporting needs torch 2.6 or newer; this is torch {torch.__version__}.')
