"""What the commands share: error messages, configs, early checks, launchers."""

import argparse
import functools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction
from mmengine.hub import get_config
from mmengine.utils import import_modules_from_strings

from xcit_mm_cli import parse_args
from xcit_mm_cli.files import missing_config

from ..compat import init_gloo, revert_sync_bn
from ..configs import innermost_datasets
from ..datasets.shapes import ensure_shapes
from ..errors import UserError
from ..weights import use_strict_reader

PARTIAL_HINT = (
    'Give the config with which the checkpoint was trained; --allow-partial uses it all the same.'
)
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
DATASETS = {
    'mmdet': ('COCO 2017 from https://cocodataset.org/#download', COCO_LAYOUT),
    'mmseg': (
        'ADEChallengeData2016.zip of the scene-parsing benchmark from '
        'http://sceneparsing.csail.mit.edu',
        ADE20K_LAYOUT,
    ),
}


def command(name: str) -> Callable[[Callable[[argparse.Namespace], int]], Callable[..., int]]:
    """Turn a function of parsed arguments into the ``main(argv=None) -> int`` of a command.

    Args:
        name (str): One of ``xcit_mm_cli.COMMANDS``.
    """

    def decorate(work: Callable[[argparse.Namespace], int]) -> Callable[..., int]:
        @functools.wraps(work)
        def main(argv: Sequence[str] | None = None) -> int:
            return explain_errors(work, parse_args(name, argv))

        return main

    return decorate


def explain_errors(work: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; print errors that a user can fix as one paragraph and return 2.

    Args:
        work (callable): What the command does; returns its exit status.
        args (Namespace): Its arguments.
    """
    use_strict_reader()
    try:
        return work(args)
    except UserError as error:
        # Strip control characters: names come from untrusted files.
        text = ''.join(c for c in str(error) if c.isprintable() or c == '\n')
        print(f'error: {text}', file=sys.stderr)
        return 2


def parse_options(items: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``--cfg-options`` as mmengine's own tools do.

    Args:
        items (Sequence[str], optional): Each ``KEY=VALUE``.
    """
    parser, parsed = argparse.ArgumentParser(), argparse.Namespace(options={})
    for item in items or ():
        try:
            DictAction([], 'options')(parser, parsed, [item])
        except AssertionError as error:  # unbalanced brackets
            raise UserError(f'--cfg-options {item}: {error}.') from None
    return parsed.options


def load_config(path: str, options: Sequence[str] | None = None) -> Config:
    """Read a config and apply ``--cfg-options``.

    Args:
        path (str): A file, or ``xcit_mm::detection/NAME.py`` from anywhere.
        options (Sequence[str], optional): Settings to change, each ``KEY=VALUE``.
    """
    problem = missing_config(path)
    if problem:
        raise UserError(problem)
    if '::' not in path:
        cfg = Config.fromfile(path)
    else:
        try:
            cfg = get_config(path)
        except (FileNotFoundError, ValueError, AssertionError) as error:
            raise UserError(f'There is no config {path}: {error}') from None
    if options:
        cfg.merge_from_dict(parse_options(options))
        # mmengine imported what the file names before it knew the options.
        import_modules_from_strings(**cfg.get('custom_imports', {'imports': []}))
    return cfg


def prepare(cfg: Config, args: argparse.Namespace) -> None:
    """Apply the settings that every run needs: work folder, launcher, this machine's limits."""
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = os.path.join('work_dirs', Path(args.config.split('::')[-1]).stem)
    cfg.launcher = args.launcher
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        init_gloo(cfg)
    except ValueError as error:
        raise UserError(str(error)) from None
    revert_sync_bn(cfg)


def task_of(cfg: Config) -> str:
    """``mmdet`` for a detector's config, ``mmseg`` for a segmentor's."""
    scope = cfg.get('default_scope')
    if scope not in DATASETS:
        raise UserError(
            f"The config's default_scope is {scope!r}; it must be 'mmdet' for a "
            "detector or 'mmseg' for a segmentor."
        )
    return scope


def check_checkpoint(path: str | None) -> None:
    """Raise if a checkpoint is a local path that does not exist."""
    if path is None or '://' in path:
        return
    if not Path(path).expanduser().is_file():
        raise UserError(
            f'There is no checkpoint {Path(path).absolute()}. Give the path of a .pth or '
            '.safetensors file, a web address, or a short name of published weights such as '
            'xcit://coco/s12/8 or xcit://ade20k/upernet/s12/8 (docs/model_zoo.md lists them).'
        )


def check_datasets(cfg: Config, loaders: tuple[str, ...]) -> None:
    """Draw the built-in data set if the config asks for it; raise if data is missing.

    Args:
        cfg (Config): The config.
        loaders (tuple[str]): Names of the data loaders that will be used.
    """
    if 'shapes' in cfg:
        try:
            ensure_shapes(**cfg.shapes)
        except FileExistsError as error:
            raise UserError(str(error)) from None
    for loader in loaders:
        for dataset in innermost_datasets(cfg.get(loader)):
            for what, path in _needed_paths(dataset):
                if not path.exists():
                    raise UserError(_missing_data(task_of(cfg), loader, what, path))


def _needed_paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    root = Path(dataset.get('data_root') or '')
    if '://' in str(dataset.get('data_root') or ''):
        return  # not on this machine's disk
    if dataset.get('data_root'):
        yield 'data_root', root
    if dataset.get('ann_file'):
        yield 'ann_file', root / dataset['ann_file']
    for key, folder in (dataset.get('data_prefix') or {}).items():
        if folder:
            yield f'data_prefix.{key}', root / folder


def _missing_data(scope: str, loader: str, what: str, path: Path) -> str:
    origin, layout = DATASETS[scope]
    return (
        f'The data set is missing: {path.absolute()} does not exist ({what} of {loader} in the '
        f'config). Get {origin}, and lay it out, or link to it, like this:\n\n'
        f'{textwrap.indent(layout, "  ")}\n\n'
        'If your data is elsewhere, change data_root of the three data loaders in your own config '
        'or with --cfg-options train_dataloader.dataset.data_root=...; see docs/custom_data.md.'
    )
