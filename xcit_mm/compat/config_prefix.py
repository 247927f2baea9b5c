"""``_base_ = 'xcit_mm::detection/...'`` in anybody's config.

Obstacle: mmengine resolves that prefix only for the packages in its own table, and finds a package
by its distribution, whose location is wrong for an editable install of today's pip.

What this does: enters us in the table under the name of a module, not of a distribution. mmengine
then finds the folder by import, which is right for either kind of install.
"""

from mmengine.config.utils import MODULE2PACKAGE


def apply() -> None:
    """Enter this package in mmengine's table."""
    MODULE2PACKAGE.setdefault('xcit_mm', 'xcit_mm.version')
