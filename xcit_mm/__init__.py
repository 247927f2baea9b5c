"""XCiT (arXiv 2106.09681) as a backbone for OpenMMLab.

Importing this package registers its classes, hooks and weight sources with mmengine, and applies
what today's PyTorch needs (:mod:`.compat`). It changes nothing else. In a config,
``custom_imports = dict(imports=['xcit_mm'])`` is all it takes.
"""

from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']

# Without these, nothing can be registered, but `python -m xcit_mm` must still run and say so.
if all(find_spec(name) for name in ('torch', 'mmengine', 'mmcv')):
    from . import compat, engine, models, weights  # noqa: F401

    compat.apply_early()
    weights.register()
