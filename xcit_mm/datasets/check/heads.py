"""Compares the number of classes of a model's heads with that of its data.

mmdet's NumClassCheckHook does so for detectors in training. This also covers segmentors and tests,
runs before any weights are downloaded, and says which lines of the config to change.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from xcit_mm_runtime.text import join_some

from ...compat import revert_sync_bn
from ...errors import BUILD_ERRORS, UserError
from ..problems import Problem
from .datasets import build_lazily

# Heads whose classes are not the dataset's: regions are objects or not, semantic branches have
# classes of their own, and re-identification has one class per person.
OTHER_CLASSES = ('rpn', 'semantic', 'panoptic', 'reid', 'track')


def find_class_problems(cfg: Config, name: str, datasets: dict[str, list[dict]]) -> list[Problem]:
    """Return a problem if heads of the model have another number of classes than the data.

    Args:
        cfg (Config): The config.
        name (str): Its name.
        datasets (dict[str, list[dict]]): The innermost datasets, by split.
    """
    if not cfg.get('model') or not cfg.get('check_classes', True):
        return []
    revert_sync_bn(cfg)
    try:
        model = MODELS.build(cfg.model)
    except BUILD_ERRORS:
        return []  # this is about data; training says what is wrong with the model
    try:
        for split, configs in datasets.items():
            for config in configs:
                check_heads(model, cfg.model, build_lazily(config).metainfo, f'{split} data')
    except UserError as error:
        return [Problem('config: class count', name, str(error))]
    return []


def check_heads(model: nn.Module, config: Any, metainfo: dict[str, Any], what: str) -> None:
    """Raise a UserError if a head has another number of classes than the dataset.

    More classes are an error, too: a class has the same number in a head and in its dataset, so
    a head that was trained for another list of classes would count for the wrong ones.

    Args:
        model (nn.Module): The model.
        config (dict): Its config.
        metainfo (dict): Of the dataset.
        what (str): Name of the dataset, for the message.
    """
    classes = metainfo.get('classes')
    # A panoptic dataset's heads are for things, stuff or both.
    if classes is None or 'thing_classes' in metainfo:
        return
    count = len(classes)
    wrong = {name: head.num_classes for name, head in class_heads(model) if not _fits(head, count)}
    if not wrong:
        return
    found = ', '.join(f'{name} {number}' for name, number in wrong.items())
    raise UserError(
        f'The {what} has {count} classes ({join_some(classes, 12)}), but heads of the model have '
        f'another number: {found}. Set in your config:\n\n  {suggest_fix(wrong, config, count)}'
        '\n\nIf the heads are right, name your classes in the dataset: '
        'metainfo=dict(classes=(...)). To use both as they are, set check_classes = False.'
    )


def class_heads(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the heads of a model that predict the classes of its dataset, with their names."""
    for name, module in model.named_modules():
        parts = [part for part in name.split('.') if part != 'module']  # of wrappers
        own = [part for part in parts if not part.isdecimal()]
        if (
            own
            and ('head' in own[-1] or own == ['backbone'])
            and isinstance(getattr(module, 'num_classes', None), int)
            and module.num_classes > 0  # backbones without a classifier have 0 or -1
            # Such a head adds up numbers of things and stuff.
            and not hasattr(module, 'num_things_classes')
            and not getattr(module, 'class_agnostic', False)
            and not any(other in part for part in own for other in OTHER_CLASSES)
        ):
            yield '.'.join(parts), module


def _fits(head: Any, count: int) -> bool:
    # One output tells two classes apart.
    is_binary = count == 2 and getattr(head, 'out_channels', None) == 1
    return head.num_classes == count or is_binary


def suggest_fix(names: Iterable[str], config: Any, count: int) -> str:
    """Return the line of a config that sets the number of classes of heads.

    Args:
        names (Iterable[str]): The heads.
        config (dict): The config of the model.
        count (int): The number of classes.
    """
    tree: dict[str, Any] = {}
    for name in names:
        node, at = tree, config.get('module', config)  # of test-time augmentation
        # Lists of heads are written as a whole, and a cascade makes several heads of one dict.
        *outer, last = [part for part in name.split('.') if not part.isdecimal()]
        for part in outer:
            node, at = node.setdefault(part, {}), (at or {}).get(part)
        if isinstance((at or {}).get(last), (list, tuple)):
            heads = f'_base_.model.{".".join([*outer, last])}'
            node[last] = f'[dict(head, num_classes={count}) for head in {heads}]'
        else:
            node[last] = {'num_classes': count}
    return f'model = {_as_code(tree)}'


def _as_code(node: Any) -> str:
    if not isinstance(node, dict):
        return str(node)
    return f'dict({", ".join(f"{key}={_as_code(value)}" for key, value in node.items())})'
