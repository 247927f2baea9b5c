"""Whether the data of a config is there; if not, what is missing, and what is there instead."""

import difflib
import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config

from ..configs import innermost_datasets, nested_dicts
from ..errors import UserError
from .check.heads import check_names
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
# task -> where the dataset of our configs comes from, and its layout
PUBLIC = {
    'mmdet': ('COCO 2017 from https://cocodataset.org/#download', COCO_LAYOUT),
    'mmseg': (
        'ADEChallengeData2016.zip of the scene-parsing benchmark from '
        'http://sceneparsing.csail.mit.edu',
        ADE20K_LAYOUT,
    ),
    'xcit_mm': ('ImageNet-1k (ILSVRC 2012) from https://image-net.org', IMAGENET_LAYOUT),
}
NAMES_SHOWN = 8


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
    paths = [path for _, dataset in used for _, path in _needed_paths(dataset)]
    if draw and shapes and paths and all(_lies_in(path, shapes['root']) for path in paths):
        try:
            ensure_shapes(**shapes)
        except FileExistsError as error:
            raise UserError(str(error)) from None
    for loader, dataset in used:
        classes = (dataset.get('metainfo') or {}).get('classes')
        # mmengine reads the names from a file if there is one.
        if not (isinstance(classes, str) and ('://' in classes or Path(classes).is_file())):
            check_names(classes, f'dataset of {loader}')
        for what, path in _needed_paths(dataset):
            if path.exists():
                continue
            text = f'The dataset is missing: {path.absolute()} does not exist ({what} of {loader} '
            text += 'in the config). '
            if shapes and _lies_in(path, shapes['root']):
                raise UserError(text + _how_to_draw(shapes))
            if _is_public(cfg.default_scope, dataset):
                raise UserError(text + _how_to_get(cfg.default_scope))
            raise UserError(text + _what_is_there(loader, what, path))
    for loader in loaders:
        _check_evaluator(cfg, loader)


def _check_evaluator(cfg: Config, loader: str) -> None:
    """Raise if the annotation file of an evaluator does not exist, whose dataset does."""
    name = loader.replace('_dataloader', '_evaluator')
    for evaluator in nested_dicts(cfg.get(name)):
        path = evaluator.get('ann_file') or '://'
        if '://' not in path and not Path(path).exists():
            datasets = innermost_datasets(cfg.get(loader))
            own = [path for one in datasets for what, path in _needed_paths(one) if 'ann' in what]
            raise UserError(
                f'{Path(path).absolute()} does not exist (ann_file of {name} in the config). It '
                f'must name the annotation file of the dataset in {loader}'
                + (f': {own[0]}' if own else '.')
            )


def _needed_paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    """The files and folders of a dataset that must be on this machine's disk."""
    if (dataset.get('backend_args') or {}).get('backend', 'local') != 'local':
        return
    root = dataset.get('data_root') or ''
    for what, path in {'data_root': '.' if root else '', **_parts(dataset)}.items():
        # As in mmengine, addresses and absolute paths do not depend on data_root.
        full = path if not path or '://' in path else os.path.join(root, path)
        if full and '://' not in full:
            yield what, Path(full)


def _parts(dataset: dict) -> dict[str, str]:
    """The paths of a dataset below its data_root."""
    folders = dataset.get('data_prefix') or {}
    named = {f'data_prefix.{key}': folder for key, folder in folders.items()}
    return {'ann_file': dataset.get('ann_file') or '', **named}


def _lies_in(path: Path, root: str) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))


def _how_to_draw(shapes: dict) -> str:
    options = [f'--{name} {value}' for name, value in shapes.items() if name != 'root']
    return (
        'It is the built-in dataset, which training and testing draw if they use no other data. '
        f'To draw it now: xcit-mm shapes {shlex.quote(shapes["root"])} {" ".join(options)}'
    )


def _is_public(task: str, dataset: dict) -> bool:
    """Whether a dataset is COCO or ADE20k as in our configs, and not the user's own data."""
    root, *layout = PUBLIC[task][1].splitlines()
    return (
        Path(dataset.get('data_root') or '') == Path(root)
        and not dataset.get('metainfo')
        and all(path.rstrip('/') in '\n'.join(layout) for path in _parts(dataset).values() if path)
    )


def _how_to_get(task: str) -> str:
    origin, layout = PUBLIC[task]
    return (
        f'Get {origin}, and lay it out, or link to it, like this:\n\n'
        f'{textwrap.indent(layout, "  ")}\n\n'
        'If your data is elsewhere, change data_root of the three data loaders in your own config '
        'or with --cfg-options train_dataloader.dataset.data_root=...; see docs/custom_data.md.'
    )


def _what_is_there(loader: str, what: str, path: Path) -> str:
    path = Path(os.path.abspath(path))
    parent = next(folder for folder in path.parents if folder.exists())
    if not parent.is_dir():
        return f'{parent} is a file, not a folder. Change {what} of the dataset in {loader}.'
    names = sorted(f'{entry.name}/' if entry.is_dir() else entry.name for entry in parent.iterdir())
    shown = ', '.join(names[:NAMES_SHOWN]) or 'nothing'
    more = f' and {len(names) - NAMES_SHOWN} more' if len(names) > NAMES_SHOWN else ''
    missing = path.relative_to(parent).parts[0].lower()
    lower = {name.rstrip('/').lower(): name for name in reversed(names)}
    close = [lower[name] for name in difflib.get_close_matches(missing, lower, cutoff=0.5)]
    guess = f' Did you mean {" or ".join(close)}?' if close else ''
    return (
        f'{parent} has {shown}{more}.{guess} Change {what} of the dataset in {loader} '
        '(data_root, ann_file and data_prefix are explained in docs/custom_data.md).'
    )
