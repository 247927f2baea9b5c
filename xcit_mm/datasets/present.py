"""Checks that the data of a config is there; if not, says what is missing and what is there."""

import difflib
import os
import shlex
import textwrap
from pathlib import Path
from typing import Any

from mmengine.config import Config

from xcit_mm_runtime.text import join_some

from ..configs import innermost_datasets, nested_dicts
from ..errors import UserError
from .shapes import ensure_shapes

COCO_LAYOUT = """\
data/coco/
  annotations/instances_train2017.json
  annotations/instances_val2017.json
  train2017/  000000000009.jpg ...
  val2017/    000000000139.jpg ..."""
ADE20K_LAYOUT = """\
data/ade/ADEChallengeData2016/
  images/training/         ADE_train_00000001.jpg ...
  images/validation/       ADE_val_00000001.jpg ...
  annotations/training/    ADE_train_00000001.png ...
  annotations/validation/  ADE_val_00000001.png ..."""
IMAGENET_LAYOUT = """\
data/imagenet/
  train/  n01440764/n01440764_10026.JPEG ...
  val/    n01440764/ILSVRC2012_val_00000293.JPEG ..."""
# scope -> where the dataset of our configs comes from, and its layout
PUBLIC = {
    'mmdet': ('COCO 2017 from https://cocodataset.org/#download', COCO_LAYOUT),
    'mmseg': (
        'ADEChallengeData2016.zip of the scene-parsing benchmark from '
        'http://sceneparsing.csail.mit.edu',
        ADE20K_LAYOUT,
    ),
    'xcit_mm': ('ImageNet-1k (ILSVRC 2012) from https://image-net.org', IMAGENET_LAYOUT),
}


def check_datasets(cfg: Config, loaders: tuple[str, ...], draw: bool = True) -> None:
    """Raise if data is missing or its class names cannot be meant.

    Args:
        cfg (Config): The config.
        loaders (tuple[str]): Names of the data loaders that will be used.
        draw (bool): Whether the built-in dataset is drawn, if these data loaders read nothing
            else. Defaults to True.
    """
    used = [(name, dataset) for name in loaders for dataset in innermost_datasets(cfg.get(name))]
    shapes = cfg.get('shapes') or {}
    paths = [path for _, dataset in used for path in _needed_paths(dataset).values()]
    if draw and shapes and paths and all(_is_inside(path, shapes['root']) for path in paths):
        ensure_shapes(**shapes)
    for loader, dataset in used:
        _check_class_names((dataset.get('metainfo') or {}).get('classes'), loader)
        for what, path in _needed_paths(dataset).items():
            if path.exists():
                continue
            if shapes and _is_inside(path, shapes['root']):
                hint = _how_to_draw(shapes)
            elif _is_public(cfg.default_scope, dataset):
                hint = _how_to_get(cfg.default_scope)
            else:
                hint = _suggest_path(loader, what, path)
            raise UserError(
                f'The dataset is missing: {path.absolute()} does not exist ({what} of {loader} in '
                f'the config). {hint}'
            )
    for loader in loaders:
        _check_evaluator(cfg, loader)


def _check_class_names(classes: Any, loader: str) -> None:
    """Raise if the classes are one string, which would be read letter by letter."""
    # mmengine reads the names from a file if there is one.
    if isinstance(classes, str) and '://' not in classes and not Path(classes).is_file():
        raise UserError(
            f'The classes of the dataset of {loader} are the string {classes!r}, and a tuple is '
            f'needed. For a single class, mind the comma: metainfo = dict(classes=({classes!r},))'
        )


def _check_evaluator(cfg: Config, loader: str) -> None:
    """Raise if the annotation file of an evaluator does not exist, whose dataset does."""
    name = loader.replace('_dataloader', '_evaluator')
    for evaluator in nested_dicts(cfg.get(name)):
        path = evaluator.get('ann_file') or '://'
        if '://' not in path and not Path(path).exists():
            needed = [_needed_paths(dataset) for dataset in innermost_datasets(cfg.get(loader))]
            own = [f': {paths["ann_file"]}' for paths in needed if 'ann_file' in paths]
            raise UserError(
                f'{Path(path).absolute()} does not exist (ann_file of {name} in the config). It '
                f'must name the annotation file of the dataset in {loader}{(own or ["."])[0]}'
            )


def _needed_paths(dataset: dict) -> dict[str, Path]:
    """Return the files and folders of a dataset that must be on this machine's disk."""
    if (dataset.get('backend_args') or {}).get('backend', 'local') != 'local':
        return {}
    root = dataset.get('data_root') or ''
    parts = {'data_root': '.' if root else '', **_parts(dataset)}
    # As in mmengine, absolute paths do not depend on data_root.
    full = {what: os.path.join(root, path) for what, path in parts.items() if path}
    return {what: Path(path) for what, path in full.items() if '://' not in path}


def _parts(dataset: dict) -> dict[str, str]:
    """Return the paths of a dataset below its data_root."""
    folders = dataset.get('data_prefix') or {}
    named = {f'data_prefix.{key}': folder for key, folder in folders.items()}
    return {'ann_file': dataset.get('ann_file') or '', **named}


def _is_inside(path: Path, root: str) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))


def _how_to_draw(shapes: dict) -> str:
    options = [f'--{name} {value}' for name, value in shapes.items() if name != 'root']
    return (
        'It is the built-in dataset, which training and testing draw if they use no other data. '
        f'To draw it now: xcit-mm shapes {shlex.quote(shapes["root"])} {" ".join(options)}'
    )


def _is_public(scope: str, dataset: dict) -> bool:
    """Return whether a dataset is COCO or ADE20k as in our configs, not the user's own data."""
    root, *layout = PUBLIC[scope][1].splitlines()
    return (
        Path(dataset.get('data_root') or '') == Path(root)
        and not dataset.get('metainfo')
        and all(path.rstrip('/') in '\n'.join(layout) for path in _parts(dataset).values() if path)
    )


def _how_to_get(scope: str) -> str:
    origin, layout = PUBLIC[scope]
    return (
        f'Get {origin}, and lay it out, or link to it, like this:\n\n'
        f'{textwrap.indent(layout, "  ")}\n\n'
        'If your data is elsewhere, change data_root of the three data loaders in your own config '
        'or with --cfg-options train_dataloader.dataset.data_root=...; see docs/custom_data.md.'
    )


def _suggest_path(loader: str, what: str, path: Path) -> str:
    path = Path(os.path.abspath(path))
    parent = next(folder for folder in path.parents if folder.is_dir())
    names = sorted(f'{entry.name}/' if entry.is_dir() else entry.name for entry in parent.iterdir())
    close = difflib.get_close_matches(path.relative_to(parent).parts[0], names, n=1, cutoff=0.5)
    guess = f' Did you mean {close[0]}?' if close else ''
    return (
        f'{parent} has {join_some(names, 8) or "nothing"}.{guess} Change {what} of the dataset in '
        f'{loader} (data_root, ann_file and data_prefix are explained in docs/custom_data.md).'
    )
