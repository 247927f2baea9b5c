"""XCiT (arXiv 2106.09681) as a backbone for OpenMMLab.

Importing this package registers its classes, hooks and weight sources with mmengine, and applies
what today's PyTorch needs (:mod:`.compat`). It changes nothing else. In a config,
``custom_imports = dict(imports=['xcit_mm'])`` is all it takes.
"""

import warnings
from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']

MISSING = [name for name in ('torch', 'mmengine', 'mmcv') if find_spec(name) is None]

if MISSING:
    # There is nothing to register, but `python -m xcit_mm` must run, to say so.
    warnings.warn(
        f'xcit_mm cannot be used: {", ".join(MISSING)} not installed. "xcit-mm doctor" says how to '
        'fix it; for mmcv, "pip install mmcv-lite==2.1.0" or a compiled mmcv 2.1.',
        stacklevel=2,
    )
else:
    from . import compat

    # Before our models, which import mmcv's layers and with them its operators.
    compat.apply_early()
    from . import engine, models, weights  # noqa: F401

    weights.register()
