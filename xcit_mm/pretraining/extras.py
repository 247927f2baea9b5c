"""timm is an extra: it is imported where it is used, with an error that says how to install it."""

import importlib
from typing import Any


def import_timm(module: str) -> Any:
    """Import a module of timm.

    Args:
        module (str): Its name, such as ``timm.data``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'pre-training needs {error.name}: pip install timm', name=error.name
        ) from error
