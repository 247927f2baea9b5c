"""The data sets of a config."""

from collections.abc import Iterator
from typing import Any


def innermost_datasets(node: Any) -> Iterator[dict]:
    """The settings of the data sets of a data loader, without the wrappers around them.

    Args:
        node (dict): A data loader or a data set of a config. Anything else has no data sets.
    """
    if not isinstance(node, dict):
        return
    inner = node.get('dataset') or node.get('datasets')
    if inner is None:
        if 'type' in node:
            yield node
        return
    for dataset in inner if isinstance(inner, (list, tuple)) else [inner]:
        yield from innermost_datasets(dataset)
