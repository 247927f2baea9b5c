"""Iterates over the parts of a config: all its dicts, or its data sets."""

from collections.abc import Iterator
from typing import Any


def nested_dicts(node: Any) -> Iterator[dict]:
    """A dict and all dicts in it, outer ones first.

    Args:
        node: A part of a config. Anything but a dict, list or tuple has none.
    """
    if isinstance(node, dict):
        yield node
    if isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from nested_dicts(value)


def innermost_datasets(node: Any) -> Iterator[Any]:
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
