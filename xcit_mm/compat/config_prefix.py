"""``_base_ = 'xcit_mm::detection/...'`` in anybody's config.

Obstacle: mmengine resolves that prefix only for the packages in its own table, and it has no
function to add one. It finds a package by its distribution, whose location is wrong for an editable
install with today's pip.

What this does: adds this package to the table, under the name of a module instead of a
distribution. mmengine then finds the folder by import, which is right for both kinds of install.
Where mmseg comes from a fork, whose distribution has another name, the same goes for ``mmseg::``.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from mmengine.config.utils import MODULE2PACKAGE


def apply() -> None:
    """Add this package to mmengine's table, and correct what it says of a fork of mmseg."""
    MODULE2PACKAGE.setdefault('xcit_mm', 'xcit_mm.version')
    try:
        version('mmsegmentation')
    except PackageNotFoundError:
        if find_spec('mmseg') is not None:
            MODULE2PACKAGE['mmseg'] = 'mmseg'
