"""Turns a checkpoint into one file that runs without this package, and checks that file."""

import torch
from mmengine.utils import digit_version

from ..errors import UserError

# Where exporting was tried and works. torch 2.6 cannot trace images of any size; versions between
# the two were not tried.
TESTED_TORCH = '2.13'
TOO_OLD = f'Exporting was tested with torch {TESTED_TORCH} and newer; this is {torch.__version__}.'
# Its modules use what older versions lack, some of it when they are imported.
if digit_version(torch.__version__) < digit_version('2.6'):
    raise UserError(TOO_OLD)
