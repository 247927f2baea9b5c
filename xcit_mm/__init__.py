"""XCiT (arXiv 2106.09681) as a backbone for OpenMMLab.

Importing this package registers its classes, hooks and weight sources with mmengine, and applies
what today's PyTorch needs (:mod:`.compat`). It changes nothing else. In a config,
``custom_imports = dict(imports=['xcit_mm'])`` is all it takes.
"""

from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']


def _require(name: str, package: str) -> None:
    """Raise if a package is missing: no requirement of ours installs or replaces these."""
    if find_spec(name) is None:
        message = f'xcit_mm needs {name}, which is not installed. To fix: pip install {package}'
        raise ModuleNotFoundError(message, name=name)


_require('torch', 'torch torchvision')
_require('mmengine', 'mmengine')
_require('mmcv', 'mmcv-lite==2.1.0')

from . import compat  # noqa: E402

# Before our models, which import mmcv's layers and with them its operators.
compat.apply_early()
from . import engine, models, pretraining, weights  # noqa: E402, F401

weights.register()
