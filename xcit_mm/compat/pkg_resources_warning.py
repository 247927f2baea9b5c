"""A warning about which users can do nothing.

Obstacle: mmengine imports ``pkg_resources`` at run time, which warns that it is deprecated and asks
to pin setuptools. Our requirements already pin it. mmengine imports it deep inside functions that
we do not call, so there is no place to filter the warning only there.

What this does: filters that one message, by its text.
"""

import warnings


def apply() -> None:
    """Filter the warning."""
    warnings.filterwarnings('ignore', message='pkg_resources is deprecated as an API')
