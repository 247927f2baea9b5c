"""A warning that users can do nothing about.

Obstacle: mmengine imports ``pkg_resources`` at run time, which warns that it is deprecated and asks
users to pin setuptools. Our requirements already pin it. The import is deep inside functions that
we do not call, so the warning cannot be filtered there alone.

What this does: filters that one message, by its text.
"""

import warnings


def apply() -> None:
    """Filter the warning."""
    warnings.filterwarnings('ignore', message='pkg_resources is deprecated as an API')
