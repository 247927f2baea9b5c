"""Compares the number of classes of a model's heads with that of its data.

mmdet's NumClassCheckHook does so for detectors in training. This also covers segmentors and tests,
runs before any weights are downloaded, and says which lines of the config to change.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from ...errors import UserError
from ...models import XCiTClassifier

# Heads whose classes are not the dataset's: regions are objects or not, semantic branches have
# classes of their own, and re-identification has one class per person.
OTHER_CLASSES = ('rpn', 'semantic', 'panoptic', 'reid', 'track')
MAX_NAMES = 12


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
    check_names(classes, what)
    count = len(classes)
    wrong = {name: head.num_classes for name, head in heads(model) if not fits(head, count)}
    if not wrong:
        return
    found = ', '.join(f'{name} {number}' for name, number in wrong.items())
    names = ', '.join(map(str, classes[:MAX_NAMES])) + (', ...' if count > MAX_NAMES else '')
    raise UserError(
        f'The {what} has {count} classes ({names}), but heads of the model have another number: '
        f'{found}. Set in your config:\n\n  {cure(wrong, config, count)}\n\n'
        'If the heads are right, name your classes in the dataset: metainfo=dict(classes=(...)). '
        'To use both as they are, set check_classes = False.'
    )


def check_names(classes: Any, what: str) -> None:
    """Raise a UserError if the classes are one string, which would be read letter by letter."""
    if isinstance(classes, str):
        raise UserError(
            f'The classes of the {what} are the string {classes!r}, and a tuple is needed. For a '
            f'single class, mind the comma: metainfo = dict(classes=({classes!r},))'
        )


def heads(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The heads of a model that predict the classes of its dataset, with their names."""
    for name, module in model.named_modules():
        parts = [part for part in name.split('.') if part != 'module']  # of wrappers
        own = [part for part in parts if not part.isdecimal()]
        if (
            own
            and ('head' in own[-1] or (own == ['backbone'] and isinstance(module, XCiTClassifier)))
            and isinstance(getattr(module, 'num_classes', None), int)
            # Such a head adds up numbers of things and stuff.
            and not hasattr(module, 'num_things_classes')
            and not getattr(module, 'class_agnostic', False)
            and not any(other in part for part in own for other in OTHER_CLASSES)
        ):
            yield '.'.join(parts), module


def fits(head: Any, count: int) -> bool:
    """Whether a head can predict that many classes."""
    # One output tells two classes apart.
    is_binary = count == 2 and getattr(head, 'out_channels', None) == 1
    return head.num_classes == count or is_binary


def cure(names: Iterable[str], config: Any, count: int) -> str:
    """The line that sets the number of classes of heads in a config.

    Args:
        names (Iterable[str]): The heads.
        config (dict): The config of the model.
        count (int): The number of classes.
    """
    tree: dict[str, Any] = {}
    for name in names:
        node, at = tree, config.get('module', config)  # of test-time augmentation
        *outer, last = _path(name)
        for part in outer:
            node, at = node.setdefault(part, {}), (at or {}).get(part)
        if isinstance((at or {}).get(last), (list, tuple)):
            heads = f'_base_.model.{".".join([*outer, last])}'
            node[last] = f'[dict(head, num_classes={count}) for head in {heads}]'
        else:
            node[last] = {'num_classes': count}
    return f'model = {_as_code(tree)}'


def _path(name: str) -> list[str]:
    # Lists of heads are written as a whole, and a cascade makes several heads of one dict.
    return [part for part in name.split('.') if not part.isdecimal()]


def _as_code(node: Any) -> str:
    if not isinstance(node, dict):
        return str(node)
    return f'dict({", ".join(f"{key}={_as_code(value)}" for key, value in node.items())})'
