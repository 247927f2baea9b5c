"""The old name of ``xcit_mm_runtime``, which keeps working."""

import importlib
import sys
import warnings

from xcit_mm_runtime import *  # noqa: F403

MODULES = ('coco', 'errors', 'inputs', 'masks', 'model', 'preprocess', 'results', 'rle')

for _name in MODULES:  # the very same modules: an error must not exist twice
    _module = importlib.import_module(f'xcit_mm_runtime.{_name}')
    sys.modules[f'{__name__}.{_name}'] = globals()[_name] = _module
# FutureWarning: Python hides a DeprecationWarning from those who run a program.
warnings.warn(
    'xcit_mm_deploy is now called xcit_mm_runtime; import that instead.', FutureWarning, 2
)
