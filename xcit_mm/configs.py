"""Finds parts of a config, and reads the text of one without running it."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xcit_mm_runtime.coco import read_coco

from .errors import UserError

# How the names begin of the detectors in :mod:`.models.sliding_windows`.
SLIDING = 'Sliding'
# The color_type of mmcv's LoadImageFromFile that keeps 16 bits: OpenCV's IMREAD_COLOR and
# IMREAD_ANYDEPTH.
KEEP_DEPTH = 3


def nested_dicts(node: Any) -> Iterator[dict]:
    """Yield a dict and all dicts in it, outer ones first.

    Args:
        node: A part of a config. Anything but a dict, list or tuple has none.
    """
    if isinstance(node, dict):
        yield node
    if isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from nested_dicts(value)


def innermost_datasets(node: Any) -> Iterator[Any]:
    """Yield the settings of the datasets of a data loader, without the wrappers around them.

    Args:
        node (dict): A data loader or a dataset of a config. Anything else has no datasets.
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


def type_name(node: Mapping[str, Any]) -> str:
    """Return the name of what a part of a config builds, without scope or package.

    Args:
        node (Mapping): Its ``type`` is a name, such as ``mmdet.CocoMetric``, or a class.
    """
    kind = node.get('type')
    return getattr(kind, '__name__', str(kind)).rpartition('.')[2]


def resizing(cfg: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the test pipeline resizes images; None if it does not.

    Args:
        cfg (Mapping): A config.

    Returns:
        dict: ``scale`` and ``keep_ratio``, or ``scale_factor``, as for mmcv's ``Resize``.
    """
    dataset: Mapping[str, Any] = next(innermost_datasets(cfg.get('test_dataloader')), {})
    for step in dataset.get('pipeline') or cfg.get('test_pipeline') or ():
        if type_name(step) != 'Resize':
            continue
        if _is_positive(step.get('scale')):
            scale = step['scale']
            sides = [scale, scale] if isinstance(scale, int) else list(scale)
            return {'scale': sides, 'keep_ratio': bool(step.get('keep_ratio'))}
        if _is_positive(step.get('scale_factor')):
            return {'scale_factor': step['scale_factor']}
    return None


def window_settings(test_cfg: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the windows in which a detector of :mod:`.models.sliding_windows` predicts.

    Args:
        test_cfg (Mapping, optional): That of the model.

    Returns:
        dict: ``size`` and ``overlap`` in pixels, and ``limit``, the largest number of detections in
        an image, if there is one. None for whole images.

    Raises:
        UserError: If the settings are no windows.
    """
    test_cfg = test_cfg or {}
    windows = test_cfg.get('windows')
    if not windows:
        return None
    given = dict(windows) if isinstance(windows, Mapping) else {}
    size, overlap = given.get('size'), given.get('overlap')
    if not (isinstance(size, int) and isinstance(overlap, int) and 0 <= overlap < size):
        raise UserError(
            'model.test_cfg.windows must be dict(size=..., overlap=...), both in pixels, with an '
            f'overlap that is smaller than the size; not {windows}.'
        )
    limit = (test_cfg.get('rcnn') or test_cfg).get('max_per_img', -1)
    return {'size': size, 'overlap': overlap, 'limit': limit if limit > 0 else None}


class Preprocessing(NamedTuple):
    """What a data_preprocessor of mmdet or mmseg does to images.

    Args:
        channel_order (str): ``rgb`` or ``bgr``, the order that the network takes.
        mean (list[float], optional): Mean of each channel in that order; None for raw values.
        std (list[float], optional): Deviation of each channel.
        divisor (int): The image is padded at the bottom and on the right until this divides both
            sides.
        pad_value (float): The value of padding, after normalization.
    """

    channel_order: str
    mean: list[float] | None
    std: list[float] | None
    divisor: int
    pad_value: float


def read_preprocessor(source: Any) -> Preprocessing:
    """Return what a data_preprocessor does to test images, which are read as BGR.

    Args:
        source (nn.Module): mmdet's or mmseg's, which name the same things differently.
    """
    names = ('_channel_conversion', 'channel_conversion')
    order = 'rgb' if any(getattr(source, name, False) for name in names) else 'bgr'
    mean, std = None, None
    if source._enable_normalize:
        mean, std = source.mean.flatten().tolist(), source.std.flatten().tolist()
    if hasattr(source, 'pad_size_divisor'):
        return Preprocessing(order, mean, std, source.pad_size_divisor, source.pad_value)
    # mmseg pads test images only if told to.
    divisor = (source.test_cfg or {}).get('size_divisor') or 1
    return Preprocessing(order, mean, std, divisor, source.pad_val)


def bit_depth(cfg: Mapping[str, Any]) -> int | None:
    """Return how many bits the values of 16-bit images have; None if no pipeline says so.

    Args:
        cfg (Mapping): A config.

    Raises:
        UserError: If pipelines contradict each other, or reduce images to 8 bits before that.
    """
    found: dict[str, set[int | None]] = {}
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        for dataset in innermost_datasets(cfg.get(name)):
            steps = list(nested_dicts(dataset.get('pipeline')))
            depths = [step['bit_depth'] for step in steps if step.get('bit_depth') is not None]
            stated: set[int | None] = {check_bit_depth(depth) for depth in depths} or {None}
            found.setdefault(name, set()).update(stated)
            # mmcv gives the value to OpenCV.
            loads = [step for step in steps if type_name(step) == 'LoadImageFromFile']
            if depths and any(step.get('color_type') != KEEP_DEPTH for step in loads):
                raise UserError(
                    f'{name}: LoadImageFromFile reduces images to 8 bits before bit_depth has an '
                    f'effect. Add color_type={KEEP_DEPTH} to it, which keeps 16 bits.'
                )
    values = set().union(*found.values())
    if len(values) > 1:
        listed = ', '.join(f'{d or "none"} in {name}' for name, all_ in found.items() for d in all_)
        raise UserError(f'All pipelines must state the same bit_depth; there is {listed}.')
    return next(iter(values), None)


def check_bit_depth(value: Any) -> int:
    """Return a bit depth; raise a :class:`UserError` if it is not one."""
    if not isinstance(value, int) or not 8 <= value <= 16:
        raise UserError(f'bit_depth must be a whole number from 8 to 16, not {value!r}.')
    return value


def category_ids(cfg: Mapping[str, Any], classes: Sequence[str]) -> list[int] | None:
    """Return the ids of classes in the annotations of the test data; None if those are not here.

    Args:
        cfg (Mapping): The config of a detector.
        classes (Sequence[str]): Names of the classes.
    """
    for dataset in innermost_datasets(cfg.get('test_dataloader')):
        path = Path(dataset.get('data_root') or '', dataset.get('ann_file') or '')
        try:
            ids = {item['name']: item['id'] for item in read_coco(path)['categories']}
            return [ids[name] for name in classes]
        except (ValueError, KeyError):
            continue  # not there, not COCO's layout, or other classes
    return None


def _is_positive(value: Any) -> bool:
    """Return whether it is a positive number, or two."""
    numbers = value if isinstance(value, (list, tuple)) and len(value) == 2 else [value]
    return all(isinstance(number, (int, float)) and number > 0 for number in numbers)


def read_literals(text: str) -> dict[str, Any]:
    """Return the settings in the text of a config, without running it: its origin is unknown.

    Args:
        text (str): Python, as mmengine saves configs: assignments of constants, lists, tuples and
            dicts. Anything else is left out.
    """
    settings: dict[str, Any] = {}
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return settings
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                settings[statement.targets[0].id] = _literal(statement.value)
            except (ValueError, TypeError, RecursionError):
                continue
    return settings


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        return {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.literal_eval(key): _literal(value) for key, value in pairs if key}
    return ast.literal_eval(node)
