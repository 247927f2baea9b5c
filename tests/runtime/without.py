"""Processes in which PyTorch and OpenMMLab cannot be imported."""

import os
import subprocess
import sys

from ..tiny import ROOT

# Importing any of these is an error, as where they are not installed.
WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        refused = {'torch', 'torchvision', 'timm', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'xcit_mm',
                   'xcit_mm_cli', 'rich', 'pycocotools', 'matplotlib', 'scipy'}
        if name.partition('.')[0] in refused:
            raise ImportError(f'{name} is not installed')
sys.meta_path.insert(0, Refuse())
"""


def without_torch(code, *arguments, cwd=ROOT):
    """Run code in a process that cannot import PyTorch or OpenMMLab."""
    words = [sys.executable, '-c', WITHOUT + code, *map(str, arguments)]
    env = {**os.environ, 'PYTHONPATH': str(ROOT)}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env)
