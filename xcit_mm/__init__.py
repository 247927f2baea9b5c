"""XCiT (arXiv 2106.09681) as a backbone for OpenMMLab.

Importing this package registers its parts with mmengine: in a config,
``custom_imports = dict(imports=['xcit_mm'])`` is all it takes.
"""

from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']

# Without them there is nothing to register; `python -m xcit_mm` must still run, to say so.
if all(find_spec(name) for name in ('torch', 'mmengine', 'mmcv')):
    from . import compat, engine, models, weights  # noqa: F401

    compat.apply_early()
    weights.register()
