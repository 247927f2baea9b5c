"""A warning that users can do nothing about.

Obstacle: mmengine imports ``pkg_resources`` at run time, which warns that it is deprecated. The
release of setuptools that still has it is pinned, so the warning asks for what is done already.

What this does: filters that one message.
"""

import warnings


def apply() -> None:
    """Filter the warning."""
    warnings.filterwarnings('ignore', message='pkg_resources is deprecated as an API')
